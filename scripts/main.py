"""`llm-sampler`: the entry point, and how errors are shown.

A user's mistake is one line that says what is allowed, with exit status 2; a machine that cannot do the work is one
line with exit status 1; Ctrl-C is 130.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import typer

from llm_sampler.scripts.archive import archive
from llm_sampler.scripts.bench import bench
from llm_sampler.scripts.best import best
from llm_sampler.scripts.compare import compare
from llm_sampler.scripts.dashboard import dashboard
from llm_sampler.scripts.kernels import kernels
from llm_sampler.scripts.record import record
from llm_sampler.scripts.report import report
from llm_sampler.scripts.storage import hide_password
from llm_sampler.scripts.tune import tune

app = typer.Typer(
    name="llm-sampler",
    help="Tune Triton GPU kernels with an LLM in the Optuna loop, and TPE whenever the LLM cannot answer.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(tune)
app.add_typer(kernels, name="kernels")
app.command()(record)
app.command()(compare)
app.command()(bench)
app.command()(best)
app.command()(report)
app.command()(dashboard)
app.add_typer(archive, name="archive")

# Typer's usage errors and their base, wherever this version of Typer takes them from (click, or its own copy).
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status.

    Args:
        arguments: Those after the program's name; None for the process's own.
    """
    given = hide_password(sys.argv[1:]) if arguments is None else list(arguments)
    # Imports make many objects and no garbage: looking for it costs a fifth of a short command's time.
    gc.set_threshold(50_000, 20, 20)
    try:
        status = app(args=given or ["--help"], standalone_mode=False)
    except _ClickError as error:
        _complain(error.format_message() if isinstance(error, _UsageError) else str(error))  # type: ignore[attr-defined]
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        sys.exit(130)
    except (ValueError, RuntimeError) as error:
        # Errors of our own packages say rule, value and remedy; any other is a fault of ours and keeps its traceback.
        if not type(error).__module__.startswith("llm_sampler."):
            raise
        _complain(str(error))
        sys.exit(2 if isinstance(error, ValueError) else 1)
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> None:
    print(f"llm-sampler: {' '.join(message.split())}", file=sys.stderr)


if __name__ == "__main__":
    main()
