"""Where the archive is: what all commands have in common."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_STORAGE = "sqlite:///llm-sampler.db"
DEFAULT_ARTIFACTS = Path("llm-sampler-artifacts")
STORAGE_VARIABLE = "LLM_SAMPLER_STORAGE"
# A URL that a process of ours hands to another, instead of an argument.
HIDDEN_VARIABLE = "LLM_SAMPLER_HIDDEN_STORAGE"

# From the environment, a URL with a password is not seen by other users' `ps`.
Storage = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar=STORAGE_VARIABLE,
        help="The archive: a database, or journal:///FILE; tune also takes grpc://HOST.",
    ),
]
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


def hide_password(arguments: Sequence[str]) -> list[str]:
    """The arguments; if ``--storage`` has a password among them, this process begins anew without it.

    Arguments are shown to every user by `ps`, as long as the process lives; its environment only to its own user.
    """
    if hidden := os.environ.pop(HIDDEN_VARIABLE, None):
        return [*arguments, "--storage", hidden]
    rest: list[str] = []
    url, value_next = "", False
    for argument in arguments:
        if value_next or argument.startswith("--storage="):
            url, value_next = argument.removeprefix("--storage="), False
        elif argument == "--storage":
            value_next = True
        else:
            rest.append(argument)
    # user:password@, or a driver's option
    if re.search(r"://[^/@]*:[^/]*@|[?&](password|passwd)=", url):
        command = sys.orig_argv[: len(sys.orig_argv) - len(arguments)]
        os.execve(sys.executable, [*command, *rest], {**os.environ, HIDDEN_VARIABLE: url})
    return list(arguments)
