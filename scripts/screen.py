"""What `llm-sampler tune` shows: a progress bar while it runs, or plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence

import optuna
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from llm_sampler.scripts.setup import Setup
from llm_sampler.scripts.storage import dashboard_command
from llm_sampler.studies.archive import shown
from llm_sampler.studies.loop import Limits, Observer
from llm_sampler.studies.records import TrialRecord, best_first
from llm_sampler.studies.result import find_baseline, reference_speedup


class Screen(Observer):
    """Shows a run: use it as a context manager around it.

    Args:
        console: Where to.
        setup: What is tuned.
        limits: When it stops.
    """

    def __init__(self, console: Console, setup: Setup, limits: Limits) -> None:
        self._console = console
        self._setup = setup
        self._limits = limits
        self._lock = threading.Lock()
        self._default_ms: float | None = None
        self._incumbent: TrialRecord | None = None
        self._measured = 0
        self._failed = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        total = limits.trials if limits.trials is not None else limits.seconds
        self._bar = self._progress.add_task(setup.name, total=total, count="", state="")

    def begin(self, study_name: str, storage: str) -> None:
        """The first lines: what is measured or replayed, and where it is kept."""
        self._print(self._setup.headline)
        self._print(f"Study {study_name} in {shown(storage)}")
        self._print(f"Watch it in a browser: {dashboard_command(storage)}")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Shows the bar, and Optuna's warnings above it."""
        logger = logging.getLogger("optuna")
        handler = RichHandler(console=self._console, show_time=False, show_path=False, level=logging.WARNING)
        # Of a trial that raises, `tune` raises the error itself; Optuna's log would add a traceback for each thread.
        handler.addFilter(lambda record: record.name != "optuna.study._optimize")
        level = optuna.logging.get_verbosity()
        optuna.logging.disable_default_handler()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        logger.addHandler(handler)
        try:
            with self._progress, warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                yield
        finally:
            logger.removeHandler(handler)
            optuna.logging.set_verbosity(level)
            optuna.logging.enable_default_handler()

    def on_start(self, records: Sequence[TrialRecord]) -> None:
        """What earlier runs did."""
        done = [record for record in records if record.measured]
        baseline = find_baseline(records, self._setup.evaluator.space)
        with self._lock:
            self._measured = len(done)
            self._failed = sum(not record.ok for record in done)
            self._incumbent = next(iter(best_first(done)), None)
            self._default_ms = baseline.median_ms if baseline else None
        if done:
            limit = "" if self._limits.trials is None else f" of {self._limits.trials}"
            self._print(f"Continuing: {len(done)}{limit} trials were done before")
        self._update()

    def on_trial(self, record: TrialRecord) -> None:
        """One more trial."""
        with self._lock:
            self._measured += record.measured
            self._failed += record.measured and not record.ok
            if record.proposed_by == "default" and record.ok:
                self._default_ms = record.median_ms
            known = [] if self._incumbent is None else [self._incumbent]
            incumbent = next(iter(best_first([*known, record])), None)
            improved = incumbent is not self._incumbent
            self._incumbent = incumbent
        if improved and not self._console.is_terminal:
            self._print(f"trial {record.number}: {self._state()}")
        self._update()

    def _update(self) -> None:
        if self._limits.trials is not None:
            count = f"{self._measured}/{self._limits.trials}"
            self._progress.update(self._bar, completed=self._measured, count=count, state=self._state())
        else:
            elapsed_s = self._progress.tasks[self._bar].elapsed or 0.0
            count = f"{self._measured} trials"
            self._progress.update(self._bar, completed=elapsed_s, count=count, state=self._state())

    def _state(self) -> str:
        """Incumbent, speedups, who proposed it, failures."""
        parts = []
        if self._incumbent is not None and self._incumbent.median_ms is not None:
            parts.append(f"{self._incumbent.median_ms:.4g} ms")
            if self._default_ms is not None:
                parts.append(f"{self._default_ms / self._incumbent.median_ms:.2f}x default")
            speedup = reference_speedup(self._incumbent, self._setup.evaluator.reference_ms)
            if speedup is not None:
                parts.append(f"{speedup:.2f}x PyTorch")
            if self._incumbent.proposed_by:
                parts.append(f"by {self._incumbent.proposed_by}")
        if self._failed:
            parts.append(f"{self._failed} failed")
        return "  ".join(parts)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False)
