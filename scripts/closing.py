"""What `llm-sampler tune` shows at the end: times side by side, the winner, failures, who did the work, what next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.table import Table

from llm_sampler.attributes import LLM
from llm_sampler.scripts.setup import Setup
from llm_sampler.scripts.storage import dashboard_command
from llm_sampler.studies.records import TrialRecord
from llm_sampler.studies.result import TuneResult, reference_speedup

_STOPPED = {
    "target": "the target speedup is reached",
    "trials": "the study has its trials",
    "time": "the time is over",
    "exhausted": "every allowed configuration is measured",
    "interrupted": "interrupted; the same command goes on from here",
}
_HOW_TO_ASK = "Any OpenAI-compatible endpoint serves: --base-url and --model name one here."
# Above so many FLOPs a byte every GPU of today is bound by arithmetic; below, by memory.
_ARITHMETIC_INTENSITY = 50


def print_result(console: Console, setup: Setup, result: TuneResult, *, sampler: str) -> None:
    """Everything but what to run next."""
    say: Callable[[str], None] = lambda text: console.print(text, markup=False)  # noqa: E731
    say(f"\nStopped after {result.measured} trials ({result.seconds:.1f} s in this run): {_STOPPED[result.stopped]}.")
    if result.best is None:
        say(f"No configuration has a time yet. {_failures(result.failures)}")
        return
    console.print(_times(setup, result))
    rationale = f": {result.best.rationale}" if result.best.rationale else ""
    say(f"\nBest, trial {result.best.number}{_by(result.best)}{rationale}")
    names = setup.evaluator.space.names
    for name in names:
        say(f"  {name} = {result.best.configuration[name]}")
    say("\nTop five:" if len(result.top) == 5 else "\nAll with a time:")
    for rank, record in enumerate(result.top, 1):
        configuration = " ".join(f"{name}={record.configuration[name]}" for name in names)
        say(f"  {rank}. {record.median_ms:.4g} ms  trial {record.number}{_by(record)}  {configuration}")
    say("")
    if result.failures or result.lost:
        say(_failures(result.failures) + (f" Lost with their process: {result.lost}." if result.lost else ""))
    say(_proposers(result, sampler))
    if setup.recording is not None and setup.recording.best is not None:
        optimum_ms = setup.recording.best.measurement.median_ms
        if optimum_ms is not None and result.best.median_ms is not None:
            above = 100 * (result.best.median_ms / optimum_ms - 1)
            distance = (
                "the best found is the recorded optimum" if above == 0 else f"the best found is {above:.1f} % above"
            )
            say(
                f"Recorded optimum of {len(setup.recording.results):,} configurations: {optimum_ms:.4g} ms; {distance}."
            )


def print_next(console: Console, setup: Setup, result: TuneResult, *, storage: str, arguments: list[str]) -> None:
    """What to run next.

    Args:
        console: Where to.
        setup: What was tuned.
        result: What came of it.
        storage: The database's URL.
        arguments: The options that name this study, without limits.
    """
    command = shlex.join(["llm-sampler", "tune", *arguments])
    lines = [("go on", f"{command} --trials {2 * max(result.measured, 30)}")]
    if result.stopped == "exhausted":
        lines = []
    if setup.recording is not None and setup.spec is not None and setup.problem is not None:
        live = f"llm-sampler tune {setup.name} --problem {setup.problem.short}"
        lines.append(("measure live on an NVIDIA GPU", f"pip install 'optuna-llm-sampler[gpu]' && {live}"))
    lines.append(("see it in a browser", dashboard_command(storage)))
    lines.append(("see what else there is", "llm-sampler kernels"))
    console.print("\nNext:", markup=False)
    width = max(len(what) for what, _ in lines)
    for what, how in lines:
        console.print(f"  {what:<{width}}  {how}", markup=False)


def _times(setup: Setup, result: TuneResult) -> Table:
    default_ms = result.baseline.median_ms if result.baseline else None
    reference_ms = result.reference_ms
    rows: list[tuple[str, float | None, TrialRecord | None]] = []
    if setup.evaluator.space.default is not None:
        rows.append(("default", default_ms, result.baseline))
    if reference_ms is not None:
        rows.append(("PyTorch", reference_ms, None))
    rows.append(("best", result.best.median_ms if result.best else None, result.best))
    columns = ["", "time"]
    columns += ["rate"] if setup.spec and setup.problem else []
    columns += ["vs default"] if default_ms is not None else []
    columns += ["vs PyTorch"] if reference_ms is not None else []
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, time_ms, record in rows:
        cells = {"": name, "time": (record.status if record else "not measured")}
        if time_ms is not None:
            cells |= {"time": f"{time_ms:.4g} ms", "rate": _rate(setup, time_ms)}
            cells["vs default"] = f"{default_ms / time_ms:.2f}x" if default_ms else ""
            versus_torch = reference_speedup(record, reference_ms) if record else 1.0
            cells["vs PyTorch"] = f"{versus_torch:.2f}x" if versus_torch else ""
        table.add_row(*(cells.get(column, "") for column in columns))
    return table


def _rate(setup: Setup, time_ms: float) -> str:
    if setup.spec is None or setup.problem is None:
        return ""
    cost = setup.spec.cost(setup.problem)
    if cost.flops > _ARITHMETIC_INTENSITY * cost.traffic_bytes:
        return f"{cost.flops / time_ms / 1e9:.0f} TFLOP/s"
    return f"{cost.traffic_bytes / time_ms / 1e9:.2f} TB/s"


def _failures(failures: Mapping[str, int]) -> str:
    if not failures:
        return "No configuration failed."
    kinds = ", ".join(f"{status} {count}" for status, count in sorted(failures.items(), key=lambda item: -item[1]))
    return f"Failed: {sum(failures.values())} ({kinds})."


def _proposers(result: TuneResult, sampler: str) -> str:
    """Who did the work; in a plain sentence, and with the remedy, where no LLM did."""
    ordered = sorted(result.proposers.items(), key=lambda item: (-item[1], item[0]))
    text = f"Proposed by: {', '.join(f'{name or sampler} {count}' for name, count in ordered)}."
    if result.llm_calls:
        text += f" LLM: {result.llm_calls} calls, {result.llm_tokens:,} tokens."
    reasons = sorted(result.fallbacks.items(), key=lambda item: (-item[1], item[0]))
    if sampler == "llm" and not result.proposers.get(LLM) and not result.llm_calls:
        why = f" ({reasons[0][0]})" if reasons else ""
        return f"{text}\nTPE did the work: no LLM was asked{why}. {_HOW_TO_ASK}"
    if sampler == "llm" and not result.proposers.get(LLM):
        text += "\nTPE did the work: no proposal of the LLM was measured."
    return text + "".join(f"\nTPE stood in for the LLM {count} times: {reason}" for reason, count in reasons[:3])


def _by(record: TrialRecord) -> str:
    return f" (by {record.proposed_by})" if record.proposed_by else ""
