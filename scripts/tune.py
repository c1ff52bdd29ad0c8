"""`llm-sampler tune`: tune a kernel, live on a GPU or on a recording of one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from llm_sampler.scripts.storage import DEFAULT_ARTIFACTS, DEFAULT_STORAGE, Artifacts, Storage, storage_arguments

if TYPE_CHECKING:
    from llm_sampler.scripts.setup import Setup

DEFAULT_TRIALS = 60


def tune(
    kernel: Annotated[str, typer.Argument(help="Name of the kernel: see `llm-sampler kernels`.")],
    problem: Annotated[
        str | None, typer.Option(metavar="SIZES", help="E.g. 4096x4096x4096 or 4096x4096x4096-bf16.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help=f"Trials in the study, earlier runs included; {DEFAULT_TRIALS} unless --timeout is given.",
        ),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1e-3, metavar="SECONDS", help="Stop after so long; alone, the only limit.")
    ] = None,
    target_speedup: Annotated[
        float | None,
        typer.Option(
            min=1e-3, metavar="X", help="Stop when X times as fast as PyTorch (without a reference: as the default)."
        ),
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Processes, each with a GPU of its own; any number on a recording."),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Keep this study apart from others of the same kernel; or a study's whole name."
        ),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(metavar="RECORDING", help="Replay a T4 file, or `shipped`: the package's; default without a GPU."),
    ] = None,
    space: Annotated[
        Path | None, typer.Option(metavar="FILE", help="T1 file of a replayed T4 file that does not hold its space.")
    ] = None,
    sampler: Annotated[str, typer.Option(metavar="NAME", help="llm, tpe, random, nsgaii or gp.")] = "llm",
    model: Annotated[str | None, typer.Option(help="The LLM; else LLM_SAMPLER_MODEL.")] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible endpoint; else OPENAI_BASE_URL.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Makes a run repeatable; each seed has its own study.")
    ] = None,
    warm_start: Annotated[
        bool | None,
        typer.Option(
            "--warm-start/--cold-start",
            help="Begin with the best of the nearest studies in the archive; default unless --seed or another sampler.",
        ),
    ] = None,
    artifacts: Artifacts = DEFAULT_ARTIFACTS,
) -> None:
    """Tune a kernel: live on this machine's GPU, or on recorded measurements where there is none.

    The same command continues the same study: a run that was killed loses nothing. The same command at the same time,
    on this machine or on others that reach the storage, works on the same study, too.
    """
    from optuna.storages import RDBStorage

    from llm_sampler.scripts.closing import print_next, print_result
    from llm_sampler.scripts.fleet import Fleet, gpus_for, private_environment
    from llm_sampler.scripts.screen import Screen
    from llm_sampler.scripts.setup import find_setup
    from llm_sampler.studies.archive import study_name
    from llm_sampler.studies.entry import Entry
    from llm_sampler.studies.freshness import machine_versions
    from llm_sampler.studies.loop import Limits
    from llm_sampler.studies.loop import tune as run
    from llm_sampler.studies.patience import PatientStorage
    from llm_sampler.studies.samplers import make_sampler
    from llm_sampler.studies.storages import close, open_any
    from llm_sampler.studies.warm import told
    from llm_sampler.studies.warm import warm_start as find_seeds
    from llm_sampler.studies.workers import requeue

    console = Console(highlight=False, soft_wrap=True)
    proposer = make_sampler(sampler, seed=seed, model=model, base_url=base_url, artifacts=artifacts)
    limits = Limits(
        trials=DEFAULT_TRIALS if trials is None and timeout is None else trials,
        seconds=timeout,
        target_speedup=target_speedup,
    )
    setup = find_setup(kernel, problem, replay, space)
    recording = setup.recording.digest() if setup.recording else ""
    gpus = gpus_for(workers) if workers is not None and not recording else []
    own, device = setup.evaluator.space, setup.evaluator.device
    name = study or ""
    if not name.startswith(f"{setup.name}/"):
        replayed = f"replay-{recording}" if recording else ""
        where = setup.problem.name if setup.problem else ""
        name = study_name(setup.name, where, device, own.digest(), replayed, *_suffixes(study, sampler, seed))
    entry = Entry(setup.name, setup.problem, device, own.digest(), recording)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(setup.evaluator))
        archive = open_any(storage, on_stale=requeue)
        stack.callback(close, archive)
        # A seed or another sampler makes an experiment, which must not depend on what was tuned before.
        warm = warm_start if warm_start is not None else sampler == "llm" and seed is None
        # A journal and a proxy cannot be searched.
        known = archive if warm and isinstance(archive, RDBStorage) else None
        seeds = find_seeds(known, name, entry, own, here=machine_versions()) if known is not None else ()
        screen = Screen(console, setup, limits)
        screen.begin(name, storage)
        for one in seeds:
            console.print(f"Warm start: {one.text}", markup=False)
        stack.enter_context(screen.running())
        if workers is None:
            result = run(
                setup.evaluator,
                told(setup.task, seeds),
                storage=archive,
                study_name=name,
                sampler=proposer,
                limits=limits,
                observer=screen,
                entry=entry,
                seeds=seeds,
            )
        else:
            options = {
                "--trials": limits.trials,
                "--timeout": timeout,
                "--target-speedup": target_speedup,
                "--artifacts": artifacts,
            }
            line = _arguments(kernel, setup, replay=replay, space=space, study=name, sampler=sampler, seed=None)
            line += [text for option, value in options.items() if value is not None for text in (option, str(value))]
            line.append("--warm-start" if warm else "--cold-start")
            lines = [
                ["tune", *line, *([] if seed is None else ["--seed", str((seed + number) % 2**32)])]
                for number in range(workers)
            ]
            common = private_environment(storage, model=model, base_url=base_url)
            environments = [{**common, **({"CUDA_VISIBLE_DEVICES": gpus[n]} if gpus else {})} for n in range(workers)]
            watched = PatientStorage(archive) if isinstance(archive, RDBStorage) else archive
            result = Fleet(console, watched, name, own, limits, screen).run(lines, environments)
    print_result(console, setup, result, sampler=sampler)
    again = _arguments(kernel, setup, replay=replay, space=space, study=study, sampler=sampler, seed=seed)
    print_next(console, setup, result, storage=storage, arguments=[*again, *storage_arguments(storage)])
    if result.stopped == "interrupted":
        raise typer.Exit(130)


def _suffixes(study: str | None, sampler: str, seed: int | None) -> tuple[str, ...]:
    """A named study is that study; else another sampler or seed is another experiment."""
    if study is not None:
        return (study,)
    return ("" if sampler == "llm" else sampler, "" if seed is None else f"seed-{seed}")


def _arguments(
    kernel: str,
    setup: Setup,
    *,
    replay: str | None,
    space: Path | None,
    study: str | None,
    sampler: str,
    seed: int | None,
) -> list[str]:
    """The arguments that name this study again, without limits and without an LLM's address."""
    named = {
        "--problem": setup.problem.short if setup.problem else None,
        "--replay": replay,
        "--space": space,
        "--study": study,
        "--sampler": sampler if sampler != "llm" else None,
        "--seed": seed,
    }
    return [kernel, *(text for name, value in named.items() if value is not None for text in (name, str(value)))]
