"""`llm-sampler kernels`: what there is to tune, and everything about one kernel.

What is shown is first gathered as JSON types (`describe`), then printed as such or drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from llm_sampler.kernels import H200, KERNELS, KNOWN_DEVICES, Device, KernelError, KernelSpec, Problem, find_kernel

if TYPE_CHECKING:
    from llm_sampler.objectives.shipped import Shipped

kernels = typer.Typer(help="List the kernels, or show one.", invoke_without_command=True)
Form = Annotated[Literal["text", "json"], typer.Option("--format", help="text or json.")]


@kernels.callback()
def list_kernels(context: typer.Context, form: Form = "text") -> None:
    """List the kernels that can be tuned; `kernels show NAME` tells all about one."""
    if context.invoked_subcommand is not None:
        return
    recordings = _recordings()
    found = [
        {
            "name": spec.name,
            "title": spec.title,
            "problems": [problem.short for problem in spec.problems],
            "recordings": [recorded.short for recorded in _recorded_problems(spec, recordings)],
        }
        for spec in KERNELS.values()
    ]
    if form == "json":
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    for one in found:
        console.print(f"[bold]{one['name']}[/]  {escape(str(one['title']))}", soft_wrap=True)
        recorded = one["recordings"]
        words = [f"{problem} (recorded)" if problem in recorded else problem for problem in one["problems"]]
        words += [f"{problem} (recorded)" for problem in recorded if problem not in one["problems"]]
        console.print(Padding(", ".join(words), (0, 0, 1, 2)))
    console.print(f"All about one:  llm-sampler kernels show {found[0]['name']}", soft_wrap=True)
    console.print(f"Tune one:       llm-sampler tune {found[0]['name']}", soft_wrap=True)


@kernels.command("show")
def show_kernel(
    name: Annotated[str, typer.Argument(help="Name of the kernel.")],
    problem: Annotated[
        str | None, typer.Option(metavar="SIZES", help="Only this problem, e.g. 4096x4096x4096-bf16; any sizes.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="E.g. A100; else this machine's GPU, or an H200."),
    ] = None,
    form: Form = "text",
) -> None:
    """Show a kernel: parameters, restrictions, default, problems, sizes of the spaces, recordings, source."""
    spec = find_kernel(name)
    problems = None if problem is None else [spec.problem(problem)]
    shown = describe(spec, _device(device), _recordings(), problems)
    if form == "json":
        print(json.dumps(shown, indent=2))
        return
    _draw(Console(highlight=False), shown)


def describe(
    spec: KernelSpec, device: Device, recordings: Sequence[Shipped], problems: Sequence[Problem] | None = None
) -> dict[str, Any]:
    """All that is known of a kernel on a device, as JSON types.

    Args:
        spec: The kernel.
        device: Its facts are in the restrictions.
        recordings: Those to tell of; other kernels' are left out.
        problems: None for the kernel's own and the recorded ones.
    """
    if problems is None:
        recorded = _recorded_problems(spec, recordings)
        problems = [*spec.problems, *(one for one in recorded if one not in spec.problems)]
    return {
        "name": spec.name,
        "title": spec.title,
        "description": spec.description,
        "device": device.name,
        "parameters": [
            {"name": one.name, "choices": list(one.choices), "meaning": one.meaning} for one in spec.parameters
        ],
        "restrictions": list(spec.restrictions),
        "facts": dict(device.facts()),
        "dtypes": list(spec.dtypes),
        "deterministic": spec.deterministic,
        "strided": spec.strided,
        "problems": [_problem(spec, one, device, recordings) for one in problems],
        "source": spec.source,
    }


def _problem(spec: KernelSpec, problem: Problem, device: Device, recordings: Sequence[Shipped]) -> dict[str, Any]:
    space, cost = spec.space(problem, device), spec.cost(problem)
    return {
        "problem": problem.short,
        "sizes": dict(problem.sizes),
        "dtype": problem.dtype,
        "allowed": space.size,
        "default": space.default,
        "flops": cost.flops,
        "traffic_bytes": cost.traffic_bytes,
        "recordings": [
            {
                "device": one.header.device_name,
                "date": one.header.date,
                "configurations": one.summary.get("configurations"),
                "chosen": one.header.chosen,
                "best_ms": one.summary.get("best_ms"),
                "reference_ms": one.header.reference_ms,
                "versions": dict(one.header.versions),
                "file": one.path.name,
            }
            for one in recordings
            if one.header.kernel == spec.name and one.header.problem == problem
        ],
    }


def _recordings() -> list[Shipped]:
    from llm_sampler.objectives.shipped import shipped_recordings

    return shipped_recordings()


def _recorded_problems(spec: KernelSpec, recordings: Sequence[Shipped]) -> list[Problem]:
    found = [one.header.problem for one in recordings if one.header.kernel == spec.name and one.header.problem]
    return list({problem.name: problem for problem in found}.values())


def _device(name: str | None) -> Device:
    """The known device whose name has a text in it; None: this machine's, or an H200.

    Raises:
        KernelError: No known device has it.
    """
    if name is None:
        from llm_sampler.objectives.device import detect_device

        return detect_device() or H200
    for device in KNOWN_DEVICES.values():
        if name.casefold() in device.name.casefold():
            return device
    raise KernelError(f"device must be one of {', '.join(KNOWN_DEVICES)}, or a part of its name, got {name!r}")


def _draw(console: Console, shown: Mapping[str, Any]) -> None:
    console.print(f"[bold]{shown['name']}[/]  {escape(shown['title'])}\n", soft_wrap=True)
    console.print(escape(shown["description"]) + "\n")
    defaults = [one["default"] for one in shown["problems"]]
    default = next(iter(defaults), None)
    parameters = _table("parameter", "choices", "default", "meaning")
    for one in shown["parameters"]:
        choices = " ".join(str(choice) for choice in one["choices"])
        value = "" if default is None else str(default[one["name"]])
        parameters.add_row(one["name"], choices, value, escape(one["meaning"]))
    console.print(parameters, "")
    facts = ", ".join(f"{fact} {value}" for fact, value in shown["facts"].items())
    console.print(f"[dim]must hold, on an {shown['device']} with {facts}[/]", soft_wrap=True)
    for text in shown["restrictions"]:
        console.print(f"  {escape(text)}", soft_wrap=True)
    problems = _table("problem", "allowed", "best", "PyTorch", "recording")
    for one in shown["problems"]:
        rows = [_recording_cells(recording) for recording in one["recordings"]] or [("", "", "")]
        for number, cells in enumerate(rows):
            problems.add_row(*((one["problem"], f"{one['allowed']:,}") if number == 0 else ("", "")), *cells)
    console.print("", problems, "")
    for one in shown["problems"]:
        if one["default"] is None:
            console.print(f"{one['problem']}: no default, the restrictions forbid them all")
        elif one["default"] != default:
            changed = ", ".join(f"{n}={v}" for n, v in one["default"].items() if default is None or default[n] != v)
            console.print(f"{one['problem']}: default with {changed}")
    console.print(f"dtypes: {', '.join(shown['dtypes'])}")
    console.print(f"same bits on every run: {_claim(shown['deterministic'])}")
    console.print(f"strided and unaligned inputs: {_claim(shown['strided'])}\n")
    console.print(shown["source"].rstrip(), soft_wrap=True, markup=False)


def _claim(expression: str) -> str:
    return {"True": "always", "False": "never"}.get(expression, f"where {escape(expression)}")


def _recording_cells(one: Mapping[str, Any]) -> tuple[str, str, str]:
    date = f", {one['date'][:10]}" if one["date"] else ""
    recording = f"{int(one['configurations'] or 0):,} on {one['device']}{date}"
    return _ms(one["best_ms"]), _ms(one["reference_ms"]), recording


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4g} ms"


def _table(first: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
