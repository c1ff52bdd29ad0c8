"""`llm-sampler archive`: what the archive holds, and studies in and out of it."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llm_sampler.scripts.storage import DEFAULT_STORAGE, Storage
from llm_sampler.studies.text import printable

if TYPE_CHECKING:
    from llm_sampler.studies.query import StudyOverview

archive = typer.Typer(help="List, export and import studies.", no_args_is_help=True)


@archive.command("list")
def list_archive(
    kernel: Annotated[str | None, typer.Argument(metavar="[KERNEL]", help="Only this kernel.")] = None,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="text or json.")] = "text",
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """List the studies, the newest first: kernel, problem, device, trials, best, speedups, age, name."""
    from llm_sampler.studies.archive import reading, shown
    from llm_sampler.studies.freshness import machine_versions
    from llm_sampler.studies.query import list_studies

    with reading(storage) as opened:
        found = list_studies(opened, here=machine_versions())
    chosen = [one for one in found if kernel is None or (one.entry is not None and one.entry.kernel == kernel)]
    if form == "json":
        print(json.dumps([_json(one) for one in chosen], indent=2))
        return
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 1_000  # a pipe has no edge at which a column would have to end
    if not chosen:
        what = f"no study of {kernel}" if kernel else "no study"
        console.print(f"The archive {shown(storage)} holds {what}.", markup=False)
        return
    console.print(_table(chosen, _utc_now()))
    if any(one.stale for one in chosen):
        console.print("stale: timed with another driver or Triton than what counts on the device now", markup=False)
    if any(one.entry and one.entry.too_new for one in chosen):
        console.print("newer: written by a newer version; pip install --upgrade optuna-llm-sampler", markup=False)


@archive.command("export")
def export_archive(
    study: Annotated[
        str | None, typer.Argument(help="Name of the study, or a part that only it has; without one: all studies.")
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="PATH", help="File of the study, or the folder for files named after studies.")
    ] = Path(),
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Write studies as T4 files, which the tools of the autotuning community read, and `archive import`."""
    from llm_sampler.scripts.report import find_study
    from llm_sampler.studies.archive import existing
    from llm_sampler.studies.exchange import copies_of, copy_study, write_t4

    with existing(storage) as opened:
        copies = copies_of(opened) if study is None else [copy_study(find_study(opened, study))]
        if study is None or output.suffix not in (".json", ".gz"):
            _make_folder(output)
        for copy in copies:
            path = output if not output.is_dir() else output / t4_name(copy.name)
            write_t4(path, copy)
            behind = f"; {copy.unfinished} unfinished ones stay behind" if copy.unfinished else ""
            print(f"{path}: {len(copy.trials)} trials of {printable(copy.name)}{behind}")


@archive.command("import")
def import_archive(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="T4 files, or URLs of other archives.")],
    space: Annotated[
        Path | None, typer.Option(metavar="FILE", help="T1 file of a T4 file that does not hold its space.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the study in the archive, for a single file.")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Add studies of T4 files or other archives; what is there already is not added again.

    All of it is added, or, where something is wrong or it is interrupted, nothing.
    """
    import optuna

    from llm_sampler.studies.archive import ArchiveError, existing, open_storage
    from llm_sampler.studies.exchange import StudyCopy, copies_of, read_t4
    from llm_sampler.studies.merge import merge

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    copies: list[StudyCopy] = []
    for source in sources:
        if "://" in source:
            with existing(source) as other:
                copies += copies_of(other)
        else:
            copies.append(read_t4(Path(source), space))
    if name is not None:
        if len(copies) != 1:
            raise ArchiveError(f"--name is for one study, and these are {len(copies)}")
        if not 0 < len(name) <= 512:
            raise ArchiveError(f"a study's name must have 1 to 512 characters, got {len(name)}")
        copies = [dataclasses.replace(copies[0], name=name)]
    target = open_storage(storage)
    try:
        for merged in merge(target, copies):
            what = "new study" if merged.created else "study"
            had = f", {merged.present} were there" if merged.present else ""
            behind = f", {merged.unfinished} unfinished ones stayed behind" if merged.unfinished else ""
            print(f"{what} {printable(merged.name)}: {merged.added} trials added{had}{behind}")
    finally:
        target.engine.dispose()


def t4_name(study_name: str) -> str:
    """A file name for a study: its own name without what file systems or shells would take for something else."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", study_name).strip("-.") or "study"
    # Names that differ only in what was left out, or beyond the limit, get different files.
    changed = study_name.replace("/", "-") != safe or len(safe) > 180
    mark = f"-{hashlib.sha256(study_name.encode()).hexdigest()[:8]}" if changed else ""
    return f"{safe[:180]}{mark}.json.gz"


def _make_folder(folder: Path) -> None:
    from llm_sampler.studies.files import OutputError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make folder {folder}: {error.strerror}") from None


def _table(studies: list[StudyOverview], now: datetime.datetime) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("kernel", "problem", "device", "trials", "failed", "stale", "best", "default", "PyTorch", "age"):
        justify: Literal["left", "right"] = "left" if name in ("kernel", "problem", "device") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    table.add_column("study", no_wrap=True)
    for one in studies:
        entry = one.entry
        note = " (newer)" if entry and entry.too_new else ""
        table.add_row(
            escape(printable(entry.kernel)) if entry else "",
            escape(printable(entry.problem.short)) if entry and entry.problem else "",
            escape(printable(entry.device)) if entry else "",
            f"{one.trials:,}",
            str(one.failed or ""),
            str(one.stale or ""),
            "" if one.best_ms is None else f"{one.best_ms:.4g} ms",
            "" if one.speedup is None else f"{one.speedup:.2f}x",
            "" if one.reference_speedup is None else f"{one.reference_speedup:.2f}x",
            "" if one.updated is None else age(now - one.updated),
            escape(printable(one.name)) + note,
        )
    return table


def age(passed: datetime.timedelta) -> str:
    """E.g. ``3 h``: seconds, minutes, hours or days, rounded down."""
    seconds = max(0, int(passed.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _json(one: StudyOverview) -> dict[str, object]:
    entry = one.entry
    return {
        "study": one.name,
        "kernel": entry.kernel if entry else None,
        "problem": entry.problem.name if entry and entry.problem else None,
        "device": entry.device if entry else None,
        "recording": entry.recording if entry else None,
        "space": entry.digest if entry else None,
        "schema": entry.schema if entry else None,
        "trials": one.trials,
        "measured": one.measured,
        "failed": one.failed,
        "stale": one.stale,
        "best_ms": one.best_ms,
        "speedup": one.speedup,
        "reference_speedup": one.reference_speedup,
        "proposed_by": dict(one.proposers),
        "updated_utc": one.updated.isoformat() if one.updated else None,
    }


def _utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
