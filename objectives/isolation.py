"""Calls in other processes, which may crash or hang without harming this one.

Exceptions::

    CallError
    ├── CallTimeout    the call took too long; its process was killed
    └── CallCrash      the call ended its process
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pebble import ProcessPool


class CallError(RuntimeError):
    """A call that did not come back."""


class CallTimeout(CallError):
    """The call took longer than its limit."""


class CallCrash(CallError):
    """The call ended its process; the message has the exit code (negative: a signal)."""


class ParallelProcesses:
    """Processes that each run one call at a time; one that crashes or hangs is replaced.

    Args:
        count: How many.
        timeout_s: Time limit of a call.
        cores: Where they run; None: wherever this process may.
    """

    def __init__(self, count: int, *, timeout_s: float, cores: Collection[int] | None = None) -> None:
        self._count = count
        self._cores = cores
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._closed = False
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPool:
        from pebble import ProcessPool

        # Spawned, not forked: a forked process cannot use CUDA.
        context = multiprocessing.get_context("spawn")
        if self._cores is None:
            return ProcessPool(self._count, context=context)
        return ProcessPool(self._count, context=context, initializer=os.sched_setaffinity, initargs=(0, self._cores))

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float | None = None) -> Any:
        """The function's result, from another process; both must be picklable. Safe from several threads.

        Raises:
            CallTimeout: It took longer than the limit.
            CallCrash: It ended its process.
            Exception: Whatever the function raised.
        """
        from pebble import ProcessExpired

        limit_s = self._timeout_s if timeout_s is None else timeout_s
        # A process that dies before it has said what it runs breaks its pool, with every call in it: each of them is
        # made once more, in a new pool.
        for _ in range(2):
            pool = self._pool
            try:
                future = pool.schedule(function, args=list(arguments), timeout=limit_s)
            except RuntimeError:
                self._replace(pool)
                continue
            try:
                return future.result()
            except FutureTimeoutError:
                raise CallTimeout(f"took longer than {limit_s:g} s") from None
            except ProcessExpired as error:
                raise CallCrash(f"ended its process with exit code {error.exitcode}") from None
            except BrokenProcessPool:
                self._replace(pool)
        raise CallCrash("ended its process twice before it began")

    def _replace(self, broken: ProcessPool) -> None:
        with self._lock:
            if self._closed:
                raise CallCrash("was not made: its processes are closed")
            if self._pool is broken:
                broken.stop()
                broken.join()
                self._pool = self._new_pool()

    def close(self) -> None:
        """Kill the processes, and wait until they are gone."""
        with self._lock:
            self._closed = True
            self._pool.stop()
            self._pool.join()


class PreparedProcess:
    """One process that is prepared once and then runs calls one at a time; started when needed, replaced when lost.

    Args:
        prepare: Runs first in each new process.
        arguments: Its arguments.
        timeout_s: Time limit of a call.
        prepare_timeout_s: Time limit of the preparation.
    """

    def __init__(
        self,
        prepare: Callable[..., Any],
        *arguments: Any,
        timeout_s: float,
        prepare_timeout_s: float = 300.0,
    ) -> None:
        self._prepare = prepare
        self._arguments = arguments
        self._timeout_s = timeout_s
        self._prepare_timeout_s = prepare_timeout_s
        self._process: ParallelProcesses | None = None
        self._lock = threading.RLock()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `ParallelProcesses.call`; also raises what the preparation raised."""
        with self._lock:
            if self._process is None:
                process = ParallelProcesses(1, timeout_s=self._timeout_s)
                try:
                    process.call(self._prepare, *self._arguments, timeout_s=self._prepare_timeout_s)
                except BaseException:
                    process.close()
                    raise
                self._process = process
            try:
                return self._process.call(function, *arguments)
            except CallError:
                self.replace()
                raise

    def replace(self) -> None:
        """End the process; the next call starts and prepares another."""
        with self._lock:
            if self._process is not None:
                self._process.close()
                self._process = None

    close = replace
