"""Who works on a study, and what becomes of trials whose worker was killed.

Each run registers its process in the study (``worker:<host>:<pid>``) and signs its trials. A trial that still
runs though nobody who could have started it lives is an orphan: it fails, and its configuration waits in the queue
once more. Processes of this host are looked up at once; those of other hosts are judged by their heartbeats
(`archive.open_storage`), or, where the storage keeps none, by their own.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages._heartbeat import is_heartbeat_enabled
from optuna.trial import FrozenTrial, TrialState

from llm_sampler.attributes import CALLS, CLAIM, PREFIX
from llm_sampler.space import Configuration, configuration_key
from llm_sampler.studies.records import TrialRecord
from llm_sampler.task import Task, read_task

WORKER_PREFIX = "worker:"
OWNER_ATTRIBUTE = "worker"
REQUEUED_ATTRIBUTE = "requeued_from"

# Of workers on storages without heartbeats of trials; the same as Optuna's heartbeats have in `archive`.
_INTERVAL_S = 30.0
_GRACE = datetime.timedelta(seconds=120)
# The number of a host's first namespace of processes: PROC_PID_INIT_INO in Linux's proc_ns.h.
_FIRST_NAMESPACE = "pid:[4026531836]"

_runs = itertools.count()
_logger = optuna.logging.get_logger("optuna.llm_sampler")


@dataclass(frozen=True)
class Worker:
    """A run that works, or worked, on a study.

    Attributes:
        host: Name of its host.
        pid: Its process id there.
        run: Its number among the runs of that process, from 0.
        birth: What tells it from a later process with the same id; empty if the system does not say.
        started: When it began to work on the study, its host's local time.
        ended: Whether it signed off.
        boot: Identifier of its host's boot; hosts may have equal names, and process numbers begin anew.
        seen: When it last said that it lives, UTC; None where the storage keeps heartbeats of trials.
    """

    host: str
    pid: int
    run: int
    birth: str
    started: datetime.datetime
    ended: bool = False
    boot: str = ""
    seen: datetime.datetime | None = None

    @property
    def name(self) -> str:
        """E.g. ``host:4711``; ``host:4711:1`` for a process's second run."""
        return f"{self.host}:{self.pid}:{self.run}" if self.run else f"{self.host}:{self.pid}"

    @property
    def alive(self) -> bool | None:
        """Whether the process lives; None if that cannot be known: it is on another host and did not sign off."""
        if self.ended:
            return False
        if (self.host, self.boot) == (_host(), _boot()):
            return _birth(self.pid) == self.birth
        return None if self.seen is None else _now() - self.seen < _GRACE

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        seen = self.seen.isoformat() if self.seen is not None else None
        return {**asdict(self), "started": self.started.isoformat(), "seen": seen}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Worker:
        """A worker from what ``to_json`` gave."""
        seen = data.get("seen")
        read = datetime.datetime.fromisoformat
        return cls(**{**data, "started": read(data["started"]), "seen": read(seen) if seen else None})

    @classmethod
    def this(cls) -> Worker:
        """A new run of this process."""
        # Naive local time like Optuna's `datetime_start`, with which it is compared.
        pid = os.getpid()
        return cls(_host(), pid, next(_runs), _birth(pid) or "", datetime.datetime.now(), boot=_boot())


@contextlib.contextmanager
def registered(study: optuna.Study) -> Iterator[Worker]:
    """Registers a run with the study for the duration of the block.

    Where the storage keeps no heartbeats of trials (a journal, a gRPC proxy), the run itself says every half minute
    that it lives; hosts' clocks must then agree to a minute.
    """
    worker = Worker.this()
    over = threading.Event()

    def write(**changes: Any) -> None:
        study.set_user_attr(WORKER_PREFIX + worker.name, replace(worker, **changes).to_json())

    def beat() -> None:
        while not over.wait(_INTERVAL_S):
            with contextlib.suppress(Exception):  # a storage that does not answer now may do so at the next beat
                write(seen=_now())

    beats = not is_heartbeat_enabled(study._storage)
    write(seen=_now() if beats else None)
    thread = threading.Thread(target=beat, name="worker-beats", daemon=True)
    if beats:
        thread.start()
    try:
        yield worker
    finally:
        over.set()
        if beats:
            thread.join()
        write(ended=True)


def workers(study: optuna.Study) -> list[Worker]:
    """All that ever registered; of those of equal names, the last."""
    return [Worker.from_json(value) for name, value in study.user_attrs.items() if name.startswith(WORKER_PREFIX)]


def recover_orphans(study: optuna.Study) -> list[int]:
    """Ends running trials that nobody lives to finish.

    Those whose measurement is stored are completed with it; the others fail, and their configurations wait again.

    Returns:
        Numbers of the orphans.
    """
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    if not running:
        return []
    known = workers(study)
    orphans = [trial for trial in running if _is_orphan(trial, known)]
    return [trial.number for trial in orphans if _end(study, trial)]


def requeue(study: optuna.Study, trial: FrozenTrial) -> None:
    """Queue the configuration of a trial that was lost.

    Not if it is incomplete, if another trial has it, or if it was lost before: a configuration that takes its machine
    down would do so for ever.
    """
    task = read_task(study.user_attrs)
    configuration = {**_claimed(trial, task), **TrialRecord.from_trial(trial).configuration}
    complete = task.space.allows(configuration) if task else bool(configuration)
    if not complete or REQUEUED_ATTRIBUTE in trial.user_attrs or _is_taken(study, configuration):
        return
    # Who proposed it, and why; not the calls that the lost trial paid for, which would count twice.
    inherited = {name: value for name, value in trial.user_attrs.items() if name.startswith(PREFIX) and name != CALLS}
    study.enqueue_trial(configuration, user_attrs={**inherited, REQUEUED_ATTRIBUTE: trial.number})


def _is_taken(study: optuna.Study, configuration: Configuration) -> bool:
    key = configuration_key(configuration)
    records = (TrialRecord.from_trial(trial) for trial in study.get_trials(deepcopy=False))
    return any(record.key == key for record in records if record.state != TrialState.FAIL)


def _claimed(trial: FrozenTrial, task: Task | None) -> Configuration:
    """The configuration that the sampler gave the trial, which may have been killed before it took it."""
    claim = trial.system_attrs.get(CLAIM)
    if task is None or not isinstance(claim, dict):
        return {}
    try:
        return {p.name: p.choices[int(claim[p.name])] for p in task.space.parameters}
    except (KeyError, IndexError, TypeError, ValueError):
        return {}


def _is_orphan(trial: FrozenTrial, known: list[Worker]) -> bool:
    owners = [worker for worker in known if worker.name == trial.user_attrs.get(OWNER_ATTRIBUTE)]
    # Killed before it was signed: anyone who was at work when it began may have begun it.
    candidates = owners or known
    began = trial.datetime_start
    for worker in candidates:
        if worker.alive is None:
            return False
        if worker.alive and (began is None or worker.started <= began):
            return False
    return True


def _end(study: optuna.Study, trial: FrozenTrial) -> bool:
    """Whether this process, and no other at the same moment, ended the orphan."""
    measurement = TrialRecord.from_trial(trial).measurement
    state, values = TrialState.FAIL, None
    if measurement is not None:
        # Killed between storing what was measured and telling the study: nothing is lost.
        state = TrialState.COMPLETE if measurement.ok else TrialState.PRUNED
        values = [measurement.median_ms] if measurement.median_ms is not None else None
    try:
        ended: bool = study._storage.set_trial_state_values(trial._trial_id, state=state, values=values)
    except UpdateFinishedTrialError:
        return False
    if ended:
        _logger.info(f"Trial {trial.number} was left running by a process that ended.")
        if state == TrialState.FAIL:
            requeue(study, trial)
    return ended


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _host() -> str:
    """The host's name; in a container with the number of its processes' namespace, where process 1 is another one."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return socket.gethostname() + ("" if namespace in ("", _FIRST_NAMESPACE) else f"-{namespace[5:-1]}")


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _birth(pid: int) -> str | None:
    """When a process of this host began, None if there is none."""
    try:
        # Field 22 of proc_pid_stat(5), in clock ticks since boot; the name in field 2 may hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    else:
        return None if fields[0] == "Z" else fields[19]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""
