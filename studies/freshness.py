"""Which measurements are stale: made with another driver or Triton than what counts today.

A compiler's or driver's new version changes times, and with them which configuration is best. What counts is, in this
order: the versions of this machine, where it has the device; those of the newest live measurement on the device; those
of the newest replayed one. A measurement that does not say its versions is not stale: nothing is known against it.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
from collections.abc import Iterable, Mapping

from llm_sampler.objectives.device import detect_device, driver_version

NAMES = ("driver", "triton")


def is_stale(versions: Mapping[str, str], current: Mapping[str, str]) -> bool:
    """Whether driver or Triton differ, where both sides say them."""
    return any(name in versions and name in current and versions[name] != current[name] for name in NAMES)


def newest_versions(
    measured: Iterable[tuple[bool, datetime.datetime | None, Mapping[str, str]]],
) -> dict[str, str]:
    """The versions of the newest measurement.

    Args:
        measured: Of each measurement whether it was live, when it ended, and its versions.
    """
    best: tuple[bool, datetime.datetime] | None = None
    found: Mapping[str, str] = {}
    for live, ended, versions in measured:
        if ended is not None and versions and (best is None or (live, ended) > best):
            best, found = (live, ended), versions
    return {name: found[name] for name in NAMES if name in found}


def machine_versions() -> tuple[str, dict[str, str]]:
    """This machine's GPU and its versions; an empty name where there is none."""
    device = detect_device()
    if device is None:
        return "", {}
    versions = {"driver": driver_version()}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["triton"] = importlib.metadata.version("triton")
    return device.name, {name: version for name, version in versions.items() if version}


def shown_versions(versions: Mapping[str, str]) -> str:
    """E.g. ``driver 575.57, triton 3.6.0``; ``unknown versions`` where there are none."""
    return ", ".join(f"{name} {versions[name]}" for name in NAMES if name in versions) or "unknown versions"
