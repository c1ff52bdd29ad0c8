"""`llm-sampler bench`: default, tuned, PyTorch, torch.compile and the roofline, timed side by side on this GPU."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from llm_sampler.scripts.setup import GPU_PACKAGES
from llm_sampler.scripts.storage import DEFAULT_STORAGE, Storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy
    from rich.console import Console

    from llm_sampler.studies.bench import Bench

Form = Literal["text", "json"]
# Of the whole table; a narrower terminal wraps its lines.
_WIDTH = 180
_MODES = ("default", "max-autotune-no-cudagraphs")


def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KERNEL[:PROBLEM]]...", help="E.g. matmul softmax:8192x8192; default: everything."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=6, help="Timed rounds of each problem.")] = 100,
    compile_mode: Annotated[
        str, typer.Option(metavar="MODE", help=f"Mode of torch.compile: {' or '.join(_MODES)}.")
    ] = _MODES[0],
    compiled: Annotated[bool, typer.Option("--compile/--no-compile", help="Whether to time torch.compile.")] = True,
    compile_limit_s: Annotated[
        float, typer.Option("--compile-limit", metavar="S", min=1, help="Most seconds for compiling one reference.")
    ] = 120.0,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="S", min=1, help="Begin no problem after so many seconds.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="text, or json.")] = "text",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Where JSON goes; else to the screen.")] = None,
    page: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a Markdown page, e.g. docs/results.md.")
    ] = None,
    image: Annotated[Path | None, typer.Option("--picture", metavar="FILE", help="Write an SVG picture.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Show an earlier run's JSON instead of measuring.")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Time kernels against PyTorch, checked first, interleaved in one run, with intervals.

    The tuned configuration of a problem is the archive's best, else that of the shipped recordings.
    """
    from rich.console import Console

    from llm_sampler.studies.bench import BenchError
    from llm_sampler.studies.bench_page import markdown, summary_lines
    from llm_sampler.studies.bench_picture import picture
    from llm_sampler.studies.files import write_whole

    if image is not None and image.suffix != ".svg":
        raise BenchError(f"--picture writes SVG: its name must end in .svg, got {image}")
    if compile_mode not in _MODES:
        raise BenchError(f"--compile-mode must be one of {', '.join(_MODES)}, got {compile_mode!r}")
    # What is shown while it runs must not get into JSON on standard output.
    console = Console(width=_WIDTH, highlight=False, stderr=form == "json" and output is None)
    if source is not None:
        found = _read(source)
    else:
        limits = (compile_limit_s, math.inf if timeout_s is None else timeout_s)
        found = _measure(console, targets or [], rounds, compile_mode if compiled else "", limits, storage)
    if form == "json":
        text = json.dumps(found.to_json(), indent=1) + "\n"
        if output is None:
            print(text, end="")
        else:
            write_whole(output, text.encode())
    else:
        _print_table(console, found)
        for line in summary_lines(found):
            console.print(line, markup=False, soft_wrap=True)
    if image is not None:
        write_whole(image, picture(found).encode())
    if page is not None:
        address = os.path.relpath(image, page.parent) if image is not None else ""
        write_whole(page, markdown(found, picture=address).encode())


def _read(path: Path) -> Bench:
    from llm_sampler.studies.bench import Bench, BenchError

    try:
        return Bench.from_json(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BenchError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BenchError(f"{path.name}: {error}") from None


def _measure(
    console: Console, texts: list[str], rounds: int, mode: str, limits_s: tuple[float, float], storage: str
) -> Bench:
    from llm_sampler.objectives.device import detect_device
    from llm_sampler.objectives.gpu import EvaluatorError
    from llm_sampler.studies.bench import Bench, find_targets
    from llm_sampler.studies.bench_page import headline
    from llm_sampler.studies.bench_run import BenchRun

    wanted = find_targets(texts)
    device = detect_device()
    if device is None:
        raise EvaluatorError(
            "bench needs an NVIDIA GPU, and the CUDA driver shows none: show an earlier run with --from FILE, or the "
            "recordings with `llm-sampler kernels`"
        )
    if missing := [name for name in GPU_PACKAGES if importlib.util.find_spec(name) is None]:
        raise EvaluatorError(f"bench needs {', '.join(missing)}: pip install 'optuna-llm-sampler[gpu]'")
    compile_limit_s, timeout_s = limits_s
    until = time.monotonic() + timeout_s
    with _archive(storage) as archive:
        run = BenchRun(device, archive, rounds=rounds, compile_mode=mode or None, compile_limit_s=compile_limit_s)
        rows = []
        try:
            for row in run.rows(wanted, until=until):
                rows.append(row)
                ratio = row.against.get("PyTorch")
                times = f"{row.our_ms:.4g} ms" if row.our_ms else "not timed"
                console.print(f"{row.title}: {times}{f', {ratio.value:.2f}x PyTorch' if ratio else ''}", markup=False)
        except KeyboardInterrupt:
            console.print("interrupted")
    if len(rows) < len(wanted):
        console.print(f"{len(rows)} of {len(wanted)} problems were measured")
    command = shlex.join(["llm-sampler", *sys.argv[1:]])
    found = Bench(device.name, dict(run.versions), run.date, command, rounds, mode, tuple(rows))
    console.print(headline(found), markup=False)
    return found


@contextlib.contextmanager
def _archive(storage: str) -> Iterator[sqlalchemy.Engine | None]:
    """The archive; None where nobody has named one and the default is not there."""
    from llm_sampler.studies.archive import ArchiveError, reading

    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(reading(storage))
        except ArchiveError:
            if storage != DEFAULT_STORAGE or Path(DEFAULT_STORAGE.removeprefix("sqlite:///")).exists():
                raise
            archive = None
        yield archive


def _print_table(console: Console, found: Bench) -> None:
    from rich.table import Table

    from llm_sampler.studies.bench_page import HEADER, cells, faults

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("kernel", *HEADER):
        table.add_column(name, no_wrap=True)
    for row in found.rows:
        table.add_row(row.kernel, row.problem, *cells(row))
    console.print(table)
    for fault in (fault for row in found.rows for fault in faults(row)):
        console.print(f"not timed: {fault}", markup=False, soft_wrap=True)
