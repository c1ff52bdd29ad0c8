"""The pictures of docs/dashboard.md: a study on the shipped recording, its dashboard, and Chromium without a screen.

A scripted model stands in for an LLM, so that the pictures need no key and are the same each time::

    python docs/screenshots_dashboard.py        # needs chromium, and the extras test and dashboard
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import optuna
from optuna.artifacts import FileSystemArtifactStore

from llm_sampler import LLMSampler
from llm_sampler.client import Answer
from llm_sampler.kernels import find_kernel
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.objectives.shipped import find_recording
from llm_sampler.scripts.dashboard import make_server
from llm_sampler.studies.archive import open_storage
from llm_sampler.studies.dashboard_view import dashboard_view
from llm_sampler.studies.entry import Entry
from llm_sampler.studies.loop import Limits, tune
from llm_sampler.studies.tasks import recording_task

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "support"))

from chromium import Page, chromium  # noqa: E402

OPENING = [
    ("large tiles through descriptors keep the tensor cores fed", 128, 256, 64, 8, 8, 3, "descriptor_flat"),
    ("the same with one stage more: loads hide behind the products", 128, 256, 64, 16, 8, 4, "descriptor_flat"),
    (
        "square tiles need fewer registers and leave room for two blocks on a multiprocessor",
        128,
        128,
        64,
        8,
        8,
        4,
        "pointer",
    ),
    ("small tiles as a control: too little reuse of what is loaded", 64, 64, 32, 8, 4, 3, "pointer"),
]


class Scripted:
    """Proposes four configurations, with reasons."""

    name = "scripted"

    def complete(self, _: Any, *, schema: Any = None, timeout_s: float = 60.0) -> Answer:
        """The answer."""
        names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages", "variant")
        proposals = [
            {"rationale": why, "family": "aggressive", "configuration": dict(zip(names, values, strict=True))}
            for why, *values in OPENING
        ]
        return Answer(json.dumps(proposals), prompt_tokens=3_120, completion_tokens=411, seconds=6.2, model="scripted")


_PLOTS = "document.querySelectorAll('.js-plotly-plot').length > 3"
# The figure that we add is the last.
_FIGURE = "[...document.querySelectorAll('.js-plotly-plot')].at(-1)"


def _says(text: str) -> str:
    return f"document.body.innerText.includes({text!r})"


def shoot(page: Page, url: str, ready: str, name: str, then: str = "true") -> None:
    """One picture, once the page is ready and something is done in it."""
    page.open(url)
    page.wait(ready)
    time.sleep(2)
    page.evaluate(then)
    time.sleep(2)  # animations
    page.screenshot(ROOT / "docs" / "images" / name)


def main() -> None:
    """Tune, serve, and take the pictures."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spec = find_kernel("matmul")
    recording = find_recording("matmul", spec.problem("4096x4096x4096"))
    with tempfile.TemporaryDirectory() as name:
        artifacts = Path(name) / "artifacts"
        artifacts.mkdir()
        storage = open_storage(f"sqlite:///{name}/a.db")
        sampler = LLMSampler(client=Scripted(), seed=3, max_calls=1, artifact_store=FileSystemArtifactStore(artifacts))
        tune(
            ReplayEvaluator(recording),
            recording_task(recording, spec),
            storage=storage,
            study_name=f"matmul/{recording.problem.name if recording.problem else ''}/NVIDIA-H200/shipped",
            sampler=sampler,
            limits=Limits(trials=60),
            entry=Entry(
                "matmul", recording.problem, recording.device_name, recording.space.digest(), recording.digest()
            ),
        )
        server = make_server(dashboard_view(storage), "127.0.0.1", 0, artifacts)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        study = f"http://127.0.0.1:{server.server_port}/dashboard/studies/1"
        with chromium(1400, 1000) as page:
            shoot(page, study, _PLOTS, "dashboard-speedups.png", f"{_FIGURE}?.scrollIntoView({{block: 'center'}})")
            shoot(page, f"{study}/trials?numbers=1", _says("as fast as the"), "dashboard-trial.png")
            shoot(page, f"{study}/note", _says("Best so far"), "dashboard-note.png")
        server.shutdown()
        storage.engine.dispose()


if __name__ == "__main__":
    main()
