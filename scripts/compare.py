"""`llm-sampler compare`: samplers against each other on recorded spaces, with the same start, accounting and seeds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llm_sampler.studies.compare_arms import Arm
    from llm_sampler.studies.compare_pool import RunLog
    from llm_sampler.studies.compare_run import Job, Run
    from llm_sampler.studies.compare_setup import ModelSource
    from llm_sampler.studies.compare_summary import Comparison

_LEAST_WIDTH = 170
CLASSICAL = "tpe,tpe/index,cmaes,nsgaii,qmc,random,neighbours"


def compare(
    spaces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SPACES]...",
            help="Kernels or names of shipped recordings, or T4 files (FILE or FILE:T1FILE); default: all shipped. "
            "With --live: KERNEL or KERNEL:SIZES.",
        ),
    ] = None,
    samplers: Annotated[
        str,
        typer.Option(
            metavar="ARM,ARM",
            help="tpe, random, nsgaii, gp, cmaes, qmc, exhaustive, neighbours, llm, hub:NAME, module:factory; each may "
            "have parts: tpe/index, nsgaii/population_size=20, llm/pure, llm/no-source, llm/no-device, "
            "llm/no-history, llm/renamed, llm/share=0.5, llm/batch=6, llm/simulated=oracle.",
        ),
    ] = CLASSICAL,
    trials: Annotated[int, typer.Option(min=1, help="Measurements of a run.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each arm on each space.")] = 20,
    gp_seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of gp, which is slow; as --seeds if left out.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: the cores of this machine.")] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="ARM", help="Verdicts compare with it; default: tpe, or the first arm.")
    ] = None,
    noise: Annotated[
        str, typer.Option(help="mean: replay the recorded time; bootstrap: redraw the recorded samples.")
    ] = "mean",
    default_first: Annotated[
        bool, typer.Option("--default/--no-default", help="Whether every run measures the default first.")
    ] = True,
    model: Annotated[str | None, typer.Option(help="The LLM; else LLM_SAMPLER_MODEL.")] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible endpoint; else OPENAI_BASE_URL.")
    ] = None,
    transcript: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keeps every exchange with the LLM, and answers what it holds already."),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="[SPACE=]FILE", help="Source text of a T4 file's kernel, for the LLM; repeatable."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Record the kernels' whole spaces on this machine's GPU first, then compare.")
    ] = False,
    time_limit: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Of one run.")] = 1_800.0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Repeat runs that failed before.")] = False,
    storage: Annotated[str | None, typer.Option(metavar="URL", help="Database that gets every finished study.")] = None,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Gets runs, tables and the page.")] = Path(
        "comparison"
    ),
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the Markdown page here as well.")] = None,
) -> None:
    """Compare samplers on recorded spaces: who needs how many measurements, and is the difference real?

    The same command takes up an interrupted comparison; finished runs are not repeated. FOLDER gets runs.jsonl,
    comparison.json, comparison.html and comparison.md.
    """
    from llm_sampler.objectives.gpu import usable_cores
    from llm_sampler.studies.compare_arms import check_arm, parse_arm
    from llm_sampler.studies.compare_noise import NOISES
    from llm_sampler.studies.compare_page import comparison_html, comparison_markdown
    from llm_sampler.studies.compare_pool import RunLog, check_packages
    from llm_sampler.studies.compare_run import Job
    from llm_sampler.studies.compare_space import CompareError, find_spaces
    from llm_sampler.studies.compare_summary import compare as summarize
    from llm_sampler.studies.compare_summary import comparison_json

    check_packages()
    fitting = [one for one in NOISES if one == noise]
    if not fitting:
        raise CompareError(f"--noise must be one of {', '.join(NOISES)}, got {noise!r}")
    arms = [parse_arm(text) for text in dict.fromkeys(filter(None, (part.strip() for part in samplers.split(","))))]
    if not arms:
        raise CompareError("--samplers must name at least one arm")
    for arm in arms:
        check_arm(arm)
    chosen = baseline or ("tpe" if any(arm.text == "tpe" for arm in arms) else arms[0].text)
    if chosen not in [arm.text for arm in arms]:
        raise CompareError(
            f"--baseline must be one of the arms ({', '.join(arm.text for arm in arms)}), got {chosen!r}"
        )
    replies = _source(arms, model, base_url, transcript)
    if storage is not None:
        from llm_sampler.studies.archive import open_storage

        open_storage(storage)  # creates the tables before several processes want to, and says what is wrong with it
    names = _recorded_now(spaces or [], output / "recordings") if live else spaces or []
    files = find_spaces(names, sources=_sources(source or []))
    wanted = [
        Job(
            space=file,
            arm=arm.text,
            seed=seed,
            trials=trials,
            noise=fitting[0],
            default_first=default_first,
            limit_s=time_limit,
            source=replies,
            storage=storage,
        )
        for seed in range(max(seeds, gp_seeds or 0))
        for file in files
        for arm in arms
        if seed < (gp_seeds if arm.is_expensive and gp_seeds is not None else seeds)
    ]
    command = _command(spaces or [], wanted[0], samplers=samplers, seeds=seeds, gp_seeds=gp_seeds, baseline=chosen)
    console = Console(highlight=False, soft_wrap=True)
    log = RunLog(output / "runs.jsonl")
    runs = _run(console, wanted, log, jobs or len(usable_cores()), retry_failed)
    comparison = summarize(
        runs, [file.load() for file in files], baseline=chosen, noise=fitting[0], default_first=default_first
    )
    _show(console, comparison, runs)
    text = comparison_markdown(comparison, runs, command)
    _write(output / "comparison.json", comparison_json(comparison, runs))
    _write(output / "comparison.html", comparison_html(comparison))
    _write(output / "comparison.md", text)
    if page is not None:
        _write(page, text)
    console.print(f"Wrote {output}/comparison.html, .md and .json; the runs are in {output}/runs.jsonl.", markup=False)


def _run(console: Console, wanted: Sequence[Job], log: RunLog, workers: int, retry_failed: bool) -> list[Run]:
    from llm_sampler.studies.compare_pool import run_all

    before = sum(log.find(job) is not None for job in wanted)
    if before:
        console.print(f"Continuing: {before} of {len(wanted)} runs were finished before.")
    columns = (TextColumn("runs"), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(wanted), completed=before)
        return run_all(wanted, log, workers=workers, retry_failed=retry_failed, on_run=lambda _: progress.advance(bar))


def _show(console: Console, comparison: Comparison, runs: Sequence[Run]) -> None:
    from llm_sampler.studies.compare_page import headline
    from llm_sampler.studies.compare_tables import clock_table, cost_table, failure_lines, overall_table, space_table

    console.print(headline(comparison))
    tables = [
        *(space_table(comparison, space.name) for space in comparison.spaces),
        cost_table(comparison),
        clock_table(runs),
        overall_table(comparison),
    ]
    # As wide as the tables need: a number that is cut off is worse than a line that wraps.
    wide = Console(highlight=False, soft_wrap=True, width=max(console.width, _LEAST_WIDTH), file=console.file)
    for table in tables:
        shown = RichTable(title=f"\n{table.title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
        for index, name in enumerate(table.columns):
            shown.add_column(name, justify="right" if index else "left", no_wrap=True)
        for row in table.rows:
            shown.add_row(*(escape(cell) for cell in row))
        wide.print(shown)
    console.print()
    for verdict in comparison.verdicts:
        console.print(verdict.text, markup=False)
    for line in failure_lines(comparison):
        console.print(f"Failed: {line}", markup=False)


def _write(path: Path, text: str) -> None:
    from llm_sampler.studies.compare_space import CompareError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CompareError(f"cannot write {path}: {error.strerror}") from None


def _recorded_now(names: Sequence[str], folder: Path) -> list[str]:
    """Recordings of whole spaces on this machine's GPU, made or completed now.

    A comparison needs the optimum and the exact distribution of times, and all arms the same measurements; measuring
    1,608 configurations of a matmul takes 91 s on an H200, less than a dozen runs.
    """
    from llm_sampler.kernels import find_kernel
    from llm_sampler.objectives.device import detect_device
    from llm_sampler.objectives.recording import Recording
    from llm_sampler.scripts.record import record
    from llm_sampler.studies.compare_space import CompareError

    device = detect_device()
    if device is None:
        raise CompareError("--live needs an NVIDIA GPU, and the CUDA driver shows none; without it recordings are used")
    if not names:
        raise CompareError("--live needs kernels to measure: KERNEL or KERNEL:SIZES")
    paths = []
    for name in names:
        kernel, _, sizes = name.partition(":")
        spec = find_kernel(kernel)
        problem = spec.problem(sizes) if sizes else spec.problems[0]
        record(kernel, problem=[problem.short], output=folder, limit=None, samples=20, seed=0)
        paths.append(str(folder / Recording(kernel, spec.space(problem, device), (), problem, device).file_name))
    return paths


def _source(arms: Sequence[Arm], model: str | None, base_url: str | None, transcript: Path | None) -> ModelSource:
    """Where the replies come from: an endpoint, a transcript, or both."""
    from llm_sampler.client import find_endpoint
    from llm_sampler.studies.compare_setup import ModelSource
    from llm_sampler.studies.compare_space import CompareError

    if not any(arm.needs_model for arm in arms):
        if model is not None or base_url is not None or transcript is not None:
            raise CompareError("--model, --base-url and --transcript are for arm llm, and there is none")
        return ModelSource()
    endpoint = find_endpoint(model, base_url, None)
    if isinstance(endpoint, str) and (transcript is None or not transcript.exists()):
        raise CompareError(f"arm llm needs a model, or a --transcript FILE to replay: {endpoint}")
    return ModelSource(model, base_url, transcript, live=not isinstance(endpoint, str))


def _sources(texts: Sequence[str]) -> dict[str, Path]:
    pairs = [text.rpartition("=") for text in texts]
    return {name: Path(path) for name, _, path in pairs}


def _command(
    spaces: Sequence[str], first: Job, *, samplers: str, seeds: int, gp_seeds: int | None, baseline: str
) -> str:
    """The command that makes the same comparison, without an endpoint's address."""
    parts = ["llm-sampler", "compare", *spaces, "--samplers", samplers, "--trials", f"{first.trials}"]
    parts += ["--seeds", f"{seeds}", *(["--gp-seeds", f"{gp_seeds}"] if gp_seeds is not None else [])]
    parts += ["--baseline", baseline]
    parts += ["--noise", first.noise] if first.noise != "mean" else []
    parts += [] if first.default_first else ["--no-default"]
    parts += ["--transcript", first.source.transcript.name] if first.source.transcript is not None else []
    return shlex.join(parts)
