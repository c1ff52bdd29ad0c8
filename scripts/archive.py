"""`llm-sampler archive`: what the archive holds, and studies in and out of it."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llm_sampler.scripts.tune import DEFAULT_STORAGE

if TYPE_CHECKING:
    from llm_sampler.studies.query import StudyOverview

archive = typer.Typer(help="List, export and import studies.", no_args_is_help=True)
Storage = Annotated[str, typer.Option(metavar="URL", help="The archive.")]


@archive.command("list")
def list_archive(
    kernel: Annotated[str | None, typer.Argument(metavar="[KERNEL]", help="Only this kernel.")] = None,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="text or json.")] = "text",
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """List the studies, the newest first: kernel, problem, device, trials, best, speedups, age, name."""
    from llm_sampler.studies.archive import existing, shown
    from llm_sampler.studies.freshness import machine_versions
    from llm_sampler.studies.query import list_studies

    with existing(storage) as opened:
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
            escape(one_line(entry.kernel)) if entry else "",
            escape(one_line(entry.problem.short)) if entry and entry.problem else "",
            escape(one_line(entry.device)) if entry else "",
            f"{one.trials:,}",
            str(one.failed or ""),
            str(one.stale or ""),
            "" if one.best_ms is None else f"{one.best_ms:.4g} ms",
            "" if one.speedup is None else f"{one.speedup:.2f}x",
            "" if one.reference_speedup is None else f"{one.reference_speedup:.2f}x",
            "" if one.updated is None else age(now - one.updated),
            escape(one_line(one.name)) + note,
        )
    return table


def age(passed: datetime.timedelta) -> str:
    """E.g. ``3 h``: seconds, minutes, hours or days, rounded down."""
    seconds = max(0, int(passed.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def one_line(text: str) -> str:
    """Foreign text without line breaks and control characters, which could move a terminal's cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)


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
