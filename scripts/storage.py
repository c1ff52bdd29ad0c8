"""Where the archive is: what all commands have in common."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_STORAGE = "sqlite:///llm-sampler.db"
DEFAULT_ARTIFACTS = Path("llm-sampler-artifacts")
STORAGE_VARIABLE = "LLM_SAMPLER_STORAGE"

# From the environment, a URL with a password is not seen by other users' `ps`.
Storage = Annotated[str, typer.Option(metavar="URL", envvar=STORAGE_VARIABLE, help="The archive, a database.")]
Artifacts = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Keeps requests to an LLM and its replies, for `llm-sampler dashboard`.")
]


def storage_arguments(storage: str) -> list[str]:
    """The options that name this archive in a command to come: none if default or environment do; no password."""
    from llm_sampler.studies.archive import shown

    return [] if storage == os.environ.get(STORAGE_VARIABLE, DEFAULT_STORAGE) else ["--storage", shown(storage)]


def dashboard_command(storage: str) -> str:
    """The line that shows this archive in a browser."""
    return shlex.join(["llm-sampler", "dashboard", *storage_arguments(storage)])
