"""`llm-sampler kernels`: what there is to tune: kernels, parameters, problems, recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from llm_sampler.kernels import H200, KERNELS, Device, KernelSpec, find_kernel

if TYPE_CHECKING:
    from llm_sampler.objectives.shipped import Shipped


def kernels(
    name: Annotated[str | None, typer.Argument(metavar="[KERNEL]", help="Only this kernel.")] = None,
) -> None:
    """List kernels with their parameters, problems and recordings."""
    from llm_sampler.objectives.device import detect_device
    from llm_sampler.objectives.shipped import shipped_recordings

    chosen = [find_kernel(name)] if name is not None else list(KERNELS.values())
    here = detect_device()
    device = here or H200
    shipped = shipped_recordings()
    console = Console(highlight=False)
    for spec in chosen:
        _print_kernel(console, spec, device, [one for one in shipped if one.header.kernel == spec.name])
    where = f"this machine's {device.name}" if here else f"an {device.name} (this machine has no NVIDIA GPU)"
    console.print(f"space: allowed configurations on {where}", soft_wrap=True)
    console.print(f"Tune one:  llm-sampler tune {chosen[0].name} --problem {chosen[0].problems[0].short}")


def _print_kernel(console: Console, spec: KernelSpec, device: Device, recordings: list[Shipped]) -> None:
    console.print(f"[bold]{spec.name}[/]  {escape(spec.title)}\n", soft_wrap=True)
    parameters = _table("parameter", "choices", "default", "meaning")
    for parameter in spec.parameters:
        choices = " ".join(str(choice) for choice in parameter.choices)
        parameters.add_row(parameter.name, choices, str(spec.defaults[0][parameter.name]), escape(parameter.meaning))
    console.print(parameters, "")
    problems = _table("problem", "space", "best", "PyTorch", "recording")
    known = {one.header.problem.name: one for one in recordings if one.header.problem is not None}
    names = {problem.name for problem in spec.problems}
    extra = [one.header.problem for one in recordings if one.header.problem and one.header.problem.name not in names]
    for problem in (*spec.problems, *extra):
        size = f"{spec.space(problem, device).size:,}"
        problems.add_row(problem.short, size, *_recording_cells(known.get(problem.name)))
    console.print(problems, "")


def _recording_cells(one: Shipped | None) -> tuple[str, str, str]:
    if one is None:
        return ("", "", "")
    summary, header = one.summary, one.header
    count = f"{int(summary.get('configurations') or 0):,}"
    recording = f"{count} on {header.device_name}" + (f", {header.date[:10]}" if header.date else "")
    return _ms(summary.get("best_ms")), _ms(header.reference_ms), recording


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4g} ms"


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
