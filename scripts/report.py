"""`llm-sampler report`: what a study has found, as a page, as text or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llm_sampler.scripts.storage import DEFAULT_STORAGE, Storage

if TYPE_CHECKING:
    import optuna
    from optuna.storages import RDBStorage

    from llm_sampler.studies.report_data import Report

Form = Literal["html", "text", "json"]


def report(
    study: Annotated[
        str | None, typer.Argument(help="Name of the study, or a part that only it has; default: the newest.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="html: one page that needs no network; text; json.")] = "html",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; text and json go to the screen, html to report.html.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Measure the winner on the kernel's other sizes on this machine's GPU.")
    ] = False,
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Report on a study: result, certainty, parameters, other sizes, failures, LLM, environment."""
    import optuna

    from llm_sampler.studies.archive import existing
    from llm_sampler.studies.files import write_whole
    from llm_sampler.studies.report_html import report_html
    from llm_sampler.studies.report_text import report_json, report_text

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with existing(storage) as archive:
        data = make_report(find_study(archive, study), live=live)
    text = {"html": report_html, "text": report_text, "json": report_json}[form](data)
    target = output or (Path("report.html") if form == "html" else None)
    if target is None:
        print(text, end="")
        return
    write_whole(target, text.encode())
    print(f"{target}: {len(text.encode()) / 1e6:.1f} MB")


def find_study(archive: RDBStorage, name: str | None) -> optuna.Study:
    """The study of that name, or the only one whose name holds it; None: the one with the newest trial.

    Raises:
        ArchiveError: There is none, or several; the message lists them.
    """
    import optuna

    from llm_sampler.studies.archive import ArchiveError
    from llm_sampler.studies.query import list_studies

    names = [study.study_name for study in archive.get_all_studies()]
    if name is None:
        ours = [one.name for one in list_studies(archive.engine) if one.entry is not None and one.updated is not None]
        if not ours:
            raise ArchiveError("the archive has no kernel's study with a trial: tune first")
        return optuna.load_study(study_name=ours[0], storage=archive)
    if name not in names:
        having = [one for one in names if name in one]
        if len(having) != 1:
            what = "no study has" if not having else f"{len(having)} studies have"
            listed = ", ".join((having or names)[:8]) or "none"
            raise ArchiveError(f"{what} {name!r} in its name: give one of {listed}")
        name = having[0]
    return optuna.load_study(study_name=name, storage=archive)


def make_report(study: optuna.Study, *, live: bool = False) -> Report:
    """The report of a study with its stability from the shipped recordings, or measured live."""
    from llm_sampler.kernels import KERNELS
    from llm_sampler.objectives.device import detect_device
    from llm_sampler.objectives.recording import RecordingError
    from llm_sampler.studies.freshness import machine_versions
    from llm_sampler.studies.records import read_records
    from llm_sampler.studies.report_data import build_report, current_versions, rank, read_study
    from llm_sampler.studies.stability import (
        gpu_evaluators,
        shipped_recordings_of,
        stability_from_recordings,
        stability_live,
    )

    entry, _ = read_study(study)
    here = machine_versions()
    records = read_records(study)
    ranking = rank(records, current_versions(entry, records, here))
    winner = ranking[0].record.configuration if ranking else None
    recordings = shipped_recordings_of(entry.kernel)
    optimum = next((one.best for one in recordings if entry.recording and one.digest() == entry.recording), None)
    if live:
        device, spec = detect_device(), KERNELS.get(entry.kernel)
        if device is None or spec is None:
            raise RecordingError(
                "--live needs an NVIDIA GPU and one of this package's kernels: without it the report uses recordings"
            )
        stability = stability_live(gpu_evaluators(spec, entry.problem, device), winner)
    else:
        stability = stability_from_recordings(entry.kernel, entry.problem, entry.device, winner, recordings)
    optimum_ms = optimum.measurement.median_ms if optimum else None
    return build_report(study, stability, optimum_ms=optimum_ms, here=here)
