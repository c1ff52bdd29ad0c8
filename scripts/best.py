"""`llm-sampler best`: the best configuration that the archive has, ready to paste."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from llm_sampler.scripts.storage import DEFAULT_STORAGE, Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import sqlalchemy

    from llm_sampler.kernels import Device, Problem
    from llm_sampler.objectives.occupancy import Occupancy
    from llm_sampler.space import Configuration
    from llm_sampler.studies.query import Answer

Form = Literal["text", "json", "triton", "python"]


def best(
    kernel: Annotated[str, typer.Argument(help="Name of the kernel.")],
    problem: Annotated[
        str | None, typer.Option(metavar="SIZES", help="E.g. 4096x4096x4096-bf16; else the kernel's first problem.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="E.g. H200; else this machine's GPU, or the one last measured on."),
    ] = None,
    form: Annotated[
        Form, typer.Option("--format", help="text, or only the configuration as JSON, triton.Config or Python.")
    ] = "text",
    storage: Storage = DEFAULT_STORAGE,
) -> None:
    """Print the best configuration that the archive has for a problem on a device.

    Without an exact match: of the nearest problem on that device, else of the same problem on another device.
    """
    from llm_sampler.studies.archive import reading
    from llm_sampler.studies.freshness import machine_versions
    from llm_sampler.studies.query import find_best
    from llm_sampler.studies.text import printable

    here = machine_versions()
    with reading(storage) as archive:
        wanted = _problem(archive, kernel, problem)
        wanted_device = _full_name(device or here[0] or _last_device(archive, kernel))
        allows = _allows(kernel, wanted, wanted_device)
        answer = find_best(archive, kernel, wanted, wanted_device, allows=allows, here=here)
    answer = dataclasses.replace(answer, configuration=_ordered(answer.configuration, kernel))
    notes = [printable(note) for note in _notes(answer, wanted, wanted_device)]
    if form == "text":
        print(_text(answer, notes))
        return
    print(_paste(form, answer, wanted))
    # Beside the configuration, so that a pipe gets nothing else.
    for note in notes if form != "json" else ():
        print(f"# {note}", file=sys.stderr)


def _ordered(configuration: Configuration, kernel: str) -> Configuration:
    """In the order of the kernel's parameters, where it is one of ours."""
    from llm_sampler.kernels import KERNELS

    spec = KERNELS.get(kernel)
    places = {parameter.name: place for place, parameter in enumerate(spec.parameters)} if spec else {}
    return dict(sorted(configuration.items(), key=lambda item: places.get(item[0], len(places))))


def _occupancy(answer: Answer) -> Occupancy | None:
    """Where the device is a known one, or this machine's, and the archive has what it takes."""
    from llm_sampler.objectives.occupancy import occupancy

    device, warps = _facts(answer.entry.device), answer.configuration.get("num_warps")
    if device is None or answer.registers is None or answer.shared_bytes is None or not isinstance(warps, int):
        return None
    return occupancy(device.capability, registers=answer.registers, shared_bytes=answer.shared_bytes, warps=warps)


def _facts(device: str) -> Device | None:
    """A device's facts by its full name; None if it is neither a known one nor this machine's."""
    from llm_sampler.kernels import KNOWN_DEVICES
    from llm_sampler.objectives.device import detect_device

    here = detect_device()
    return here if here is not None and here.name == device else KNOWN_DEVICES.get(device)


def _last_device(archive: sqlalchemy.Engine, kernel: str) -> str:
    from llm_sampler.studies.query import devices_of

    return next(iter(devices_of(archive, kernel)), "")


def _full_name(device: str) -> str:
    """The name as the driver gives it, where it is a known one; the archive knows devices by any spelling."""
    from llm_sampler.kernels import KNOWN_DEVICES
    from llm_sampler.studies.query import same_device

    return next((name for name in KNOWN_DEVICES if same_device(name, device)), device)


def _problem(archive: sqlalchemy.Engine, kernel: str, text: str | None) -> Problem | None:
    from llm_sampler.kernels import KERNELS
    from llm_sampler.studies.archive import ArchiveError
    from llm_sampler.studies.query import problems_of

    spec = KERNELS.get(kernel)
    if spec is not None:
        return spec.problem(text) if text is not None else spec.problems[0]
    known = problems_of(archive, kernel)
    if text is None:
        return known[0] if known else None
    for one in known:
        if text in (one.name, one.short):
            return one
    names = ", ".join(one.short for one in known) or "none that has a name: leave --problem out"
    raise ArchiveError(f"problem of {kernel} must be one that the archive has ({names}), got {text!r}")


def _allows(kernel: str, problem: Problem | None, device: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether a configuration meets the kernel's restrictions for the problem on the device, as far as known."""
    from llm_sampler.kernels import KERNELS

    spec, facts = KERNELS.get(kernel), _facts(device)
    if spec is None or problem is None or facts is None:
        return lambda _: True
    checker = spec.space(problem, facts).checker

    def allows(configuration: Mapping[str, Any]) -> bool:
        # What an older kernel had no parameter for cannot be checked, and choices may have changed since: it ran.
        known = (index for index, names in enumerate(checker.variables) if names <= configuration.keys())
        return all(checker.holds(index, configuration) for index in known)

    return allows


def _notes(answer: Answer, problem: Problem | None, device: str) -> list[str]:
    """How the answer fits the question, and what is to be known about it."""
    from llm_sampler.studies.freshness import shown_versions

    wanted = " ".join(filter(None, [answer.entry.kernel, problem.short if problem else "", f"on {device}"]))
    notes = {
        "exact": f"exact match: {answer.entry.title}",
        "nearest problem": f"no measurement of {wanted}; nearest problem on that device: {answer.entry.title}",
        "other device": f"no measurement on {device}; same problem on another device: {answer.entry.title}",
        "other problem and device": f"no measurement of {wanted}; nearest on another device: {answer.entry.title}",
    }
    found = [notes[answer.match]]
    if answer.stale:
        found.append(
            f"stale: measured with {shown_versions(answer.versions)}; what counts now is "
            f"{shown_versions(answer.current)}: measure it again"
        )
    if answer.faster_stale_ms is not None:
        found.append(f"a stale measurement, made with other versions, was faster: {answer.faster_stale_ms:.4g} ms")
    if answer.match != "exact":
        found.append("tune it: a new study begins with this configuration")
    return found


def _text(answer: Answer, notes: list[str]) -> str:
    from llm_sampler.studies.freshness import shown_versions
    from llm_sampler.studies.paste import json_line, python_line, triton_line
    from llm_sampler.studies.text import printable

    factors = [
        f"{factor:.2f}x {what}"
        for what, factor in (("the default", answer.speedup), ("PyTorch", answer.reference_speedup))
        if factor is not None
    ]
    speed = f", {' and '.join(factors)}" if factors else ""
    held = _occupancy(answer)
    return "\n".join(
        [
            *(f"{note[0].upper()}{note[1:]}." for note in notes),
            f"{answer.median_ms:.4g} ms{speed}; best of {answer.measured:,} measured configurations "
            f"({shown_versions(answer.versions)}).",
            *([f"A multiprocessor holds {held.text}."] if held else []),
            printable(f"Study {answer.study}, trial {answer.trial}"),
            "",
            "JSON    " + json_line(answer.configuration),
            "Triton  " + triton_line(answer.configuration),
            "Python  " + python_line(answer.configuration),
        ]
    )


def _paste(form: Form, answer: Answer, problem: Problem | None) -> str:
    from llm_sampler.studies.paste import python_launch, triton_line

    if form == "json":
        return _json(answer, problem)
    if form == "triton":
        return triton_line(answer.configuration)
    return python_launch(answer.configuration, answer.entry.kernel, problem)


def _json(answer: Answer, problem: Problem | None) -> str:
    held = _occupancy(answer)
    data = {
        "configuration": answer.configuration,
        "kernel": answer.entry.kernel,
        "match": answer.match,
        "wanted_problem": problem.name if problem else None,
        "problem": answer.entry.problem.name if answer.entry.problem else None,
        "device": answer.entry.device,
        "median_ms": answer.median_ms,
        "speedup": answer.speedup,
        "reference_speedup": answer.reference_speedup,
        "occupancy": dataclasses.asdict(held) if held else None,
        "stale": answer.stale,
        "versions": dict(answer.versions),
        "measured": answer.measured,
        "study": answer.study,
        "trial": answer.trial,
    }
    return json.dumps(data, indent=2)
