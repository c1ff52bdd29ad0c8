"""`Entry`: what a study is about, kept in the study: kernel, problem, device, space, and the form of its data.

Studies that were written before there were entries tell the same through their name and task: schema 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna

from llm_sampler.kernels.spec import ELEMENT_BYTES, Problem
from llm_sampler.space import SpaceError
from llm_sampler.studies.archive import ArchiveError
from llm_sampler.task import Task, read_task

SCHEMA = 1
"""Version of what a study's attributes hold; a program reads its own and all earlier ones."""
ENTRY_ATTRIBUTE = "archive:entry"
_REPLAY = re.compile(r"(?:replay|recorded)-([0-9a-f]{8})")
_NO_SIZES = {"flops", "traffic_bytes", "roofline_ms"}
_MOST_SIZE = 2**63


@dataclass(frozen=True)
class Entry:
    """What a study is about.

    Attributes:
        kernel: Name of the kernel.
        problem: Its input; None where a recording does not say.
        device: Name of what measures or measured; empty where a recording does not say.
        digest: The space's digest.
        recording: Digest of the recording that is replayed; empty if the study measures live.
        schema: See `SCHEMA`; 0 for studies from before it.
    """

    kernel: str
    problem: Problem | None
    device: str
    digest: str
    recording: str = ""
    schema: int = SCHEMA

    @property
    def title(self) -> str:
        """E.g. ``matmul 4096x4096x4096-fp16 on NVIDIA H200``."""
        problem = f" {self.problem.short}" if self.problem else ""
        return f"{self.kernel}{problem}" + (f" on {self.device}" if self.device else "")

    @property
    def too_new(self) -> bool:
        """Whether a newer version of this program wrote the study."""
        return self.schema > SCHEMA

    def to_json(self) -> dict[str, Any]:
        """As JSON types."""
        problem = self.problem and {
            "sizes": [[name, size] for name, size in self.problem.sizes.items()],
            "dtype": self.problem.dtype,
        }
        return {
            "schema": self.schema,
            "kernel": self.kernel,
            "problem": problem,
            "device": self.device,
            "space": self.digest,
            "recording": self.recording,
        }

    @classmethod
    def from_json(cls, data: Any) -> Entry:
        """An entry from what ``to_json`` gave; unknown names are ignored.

        Raises:
            ArchiveError: The data has another form.
        """
        try:
            problem = data["problem"]
            return cls(
                kernel=_text(data["kernel"]),
                problem=None if problem is None else _problem(problem["sizes"], problem["dtype"]),
                device=_text(data["device"]),
                digest=_text(data["space"]),
                recording=_text(data["recording"]),
                schema=int(data["schema"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ArchiveError(
                f"an archive entry must have schema, kernel, problem, device, space and recording: {error!r:.200}"
            ) from None


def write_entry(study: optuna.Study, entry: Entry) -> None:
    """Keep the entry in the study, unless it is there.

    Raises:
        ArchiveError: A newer version of this program wrote the study.
    """
    if ENTRY_ATTRIBUTE in study.user_attrs:
        refuse_newer(study.study_name, Entry.from_json(study.user_attrs[ENTRY_ATTRIBUTE]))
    else:
        study.set_user_attr(ENTRY_ATTRIBUTE, entry.to_json())


def refuse_other_device(study: optuna.Study, entry: Entry) -> None:
    """Refuse to measure on a device other than the study's, or to mix measurements with replayed ones.

    Raises:
        ArchiveError: The study has its times from elsewhere; the message has the line that starts one for this device.
    """
    known = read_entry(study.study_name, study.user_attrs)
    if known is None or (known.device, known.recording) == (entry.device, entry.recording) or not known.device:
        return
    there, here = (
        ("replayed, of " if e.recording else "of ") + (e.device or "an unknown device") for e in (known, entry)
    )
    problem = f" --problem {entry.problem.short}" if entry.problem else ""
    raise ArchiveError(
        f"the times of study {study.study_name} are {there}, and those here {here}: they do "
        f"not compare. A study of its own: llm-sampler tune {entry.kernel}{problem}"
    )


def read_entry(name: str, user_attrs: Mapping[str, Any]) -> Entry | None:
    """The entry of a study, from its name and task where it has none; None if the study is not about a kernel."""
    if ENTRY_ATTRIBUTE in user_attrs:
        try:
            return Entry.from_json(user_attrs[ENTRY_ATTRIBUTE])
        except ArchiveError:
            return None
    try:
        task = read_task(user_attrs)
    except SpaceError:
        return None
    return None if task is None else _derived(name, task)


def refuse_newer(name: str, entry: Entry) -> None:
    """Make sure that this program knows how to read the study.

    Raises:
        ArchiveError: A newer version wrote it; the message says what to do.
    """
    if entry.too_new:
        raise ArchiveError(
            f"study {name} was written by a newer version of this program (schema {entry.schema}, and this one reads "
            f"up to {SCHEMA}); nothing is lost: pip install --upgrade optuna-llm-sampler"
        )


def _derived(name: str, task: Task) -> Entry:
    parts = name.split("/")
    sizes = {n: v for n, v in task.problem.items() if type(v) is int and n not in _NO_SIZES}
    dtype = task.problem.get("dtype")
    problem = Problem(sizes, str(dtype)) if sizes and dtype in ELEMENT_BYTES else None
    device = str(task.device.get("name") or "")
    if not device and " on " in task.title:
        device = task.title.rpartition(" on ")[2]
    kernel = parts[0] if len(parts) >= 4 else task.title.split()[0] if task.title.split() else name
    replayed = [match[1] for part in parts if (match := _REPLAY.fullmatch(part))]
    return Entry(kernel, problem, device, task.space.digest(), next(iter(replayed), ""), schema=0)


def _problem(sizes: Any, dtype: Any) -> Problem:
    found = {_text(name): int(size) for name, size in sizes}
    if not all(0 < size < _MOST_SIZE for size in found.values()) or dtype not in ELEMENT_BYTES:
        raise ValueError(f"problem {found} {dtype}")
    return Problem(found, dtype)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a text: {value!r:.80}")
    return value
