"""``llm-sampler dashboard`` beside a study that runs: what a browser shows, and what nobody may do through it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from llm_sampler import LLMSampler
from llm_sampler.client import Answer
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.space import Configuration
from llm_sampler.studies.archive import open_storage
from llm_sampler.studies.entry import Entry
from llm_sampler.studies.loop import Limits, tune
from llm_sampler.studies.tasks import recording_task

pytest.importorskip("optuna_dashboard", reason="no dashboard here: pip install optuna-dashboard")
HOSTILE = (
    "wide <script>window.owned = 1</script><img src=x onerror='window.owned = 2'> [here](javascript:window.owned=3) "
    '<svg onload=window.owned=4> ![x](x"onerror=window.owned=5) $\\href{javascript:window.owned=6}{y}$'
)
SECONDS_A_TRIAL = 0.3


class HostileModel:
    """Proposes three configurations, with a reason that tries to run in whatever shows it."""

    name = "hostile"

    def complete(self, _: Any, *, schema: Any = None, timeout_s: float = 60.0) -> Answer:
        proposals = [{"configuration": {"x": 6, "y": y, "z": "b"}, "rationale": HOSTILE} for y in (2, 3, 4)]
        return Answer(json.dumps(proposals), seconds=0.1, model="hostile")


class SlowEvaluator(ReplayEvaluator):
    """Takes its time."""

    def evaluate(self, configuration: Configuration) -> Measurement:
        time.sleep(SECONDS_A_TRIAL)
        return super().evaluate(configuration)


@pytest.fixture
def running_study(url: str, toy: Callable[..., Recording]) -> Iterator[threading.Event]:
    """A study at work; set the event to end it."""
    recording = toy()
    storage = open_storage(url)
    task = recording_task(recording)
    over = threading.Event()

    def work() -> None:
        sampler = LLMSampler(client=HostileModel(), seed=0, max_calls=1)
        entry = Entry("toy", None, recording.device_name, recording.space.digest(), recording.digest())
        for trials in range(5, 78):
            if over.is_set():
                return
            tune(
                SlowEvaluator(recording),
                task,
                storage=storage,
                study_name="toy/study",
                sampler=sampler,
                limits=Limits(trials=trials),
                entry=entry,
            )

    thread = threading.Thread(target=work)
    thread.start()
    while not storage.get_all_studies() or not storage.get_all_trials(1, states=(optuna.trial.TrialState.COMPLETE,)):
        time.sleep(0.05)
    yield over
    over.set()
    thread.join()
    storage.engine.dispose()


@pytest.fixture
def serve(url: str) -> Iterator[Callable[..., str]]:
    """Starts the dashboard of the archive; its address."""
    processes: list[subprocess.Popen[str]] = []

    def start(*options: str) -> str:
        command = [sys.executable, "-m", "llm_sampler.scripts.main", "dashboard", "--storage", url, "--port", "0"]
        processes.append(subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout is not None
        line = processes[-1].stdout.readline()
        assert f"{url} at http://127.0.0.1:" in line
        found = re.search(r"http://[\d.:]+/", line)
        assert found is not None
        return found[0]

    yield start
    for process in processes:
        process.terminate()
        process.communicate()


@pytest.mark.slow
def test_a_browser_shows_a_study_that_runs_and_runs_nothing_of_it(
    running_study: threading.Event, serve: Callable[..., str], tmp_path: Path
) -> None:
    websockets = pytest.importorskip("websockets", reason="no client for a browser here: pip install websockets")
    assert websockets
    from chromium import chromium, find_chromium

    if find_chromium() is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    address = serve()
    count = "+(document.body.innerText.match(/(\\d+) Trials/) ?? [])[1]"
    with chromium() as page:
        page.open(f"{address}dashboard/studies/1/trials")
        first = page.wait(count)
        # Without a reload, while the study runs.
        assert page.wait(f"{count} > {first} && {count}") > first
        page.open(f"{address}dashboard/studies/1/trials?numbers=1")
        page.wait("document.body.innerText.includes('as fast as the default')")
        text = page.text
        assert "<script>window.owned = 1</script>" in text, "the reason is not shown as it is"
        assert "javascript:" in text
        page.open(f"{address}dashboard/studies/1/note")
        page.wait("document.body.innerText.includes('Best so far')")
        assert "kernel:speedup" in page.text
        page.open(f"{address}dashboard/studies/1")
        page.wait("document.querySelectorAll('.js-plotly-plot').length > 0")
        page.wait("document.body.innerText.includes('Speedup over the default configuration')")
        assert page.evaluate("window.owned === undefined")
        assert not [name for name, _ in page.events if name == "Page.javascriptDialogOpening"]
    running_study.set()


def test_the_dashboard_answers_its_own_pages_only(serve: Callable[..., str], url: str) -> None:
    optuna.create_study(storage=url, study_name="s")
    address = serve().removeprefix("http://").rstrip("/")

    def status(method: str, path: str, **headers: str) -> int:
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        try:
            return connection.getresponse().status
        finally:
            connection.close()

    assert status("GET", "/api/studies") == 200
    # Another site's page whose name resolves to this machine, and one that sends what it may not read the answer of.
    assert status("GET", "/api/studies", Host="attacker.example") == 403
    assert status("DELETE", "/api/studies/1", Origin="http://attacker.example") == 403
    assert optuna.get_all_study_names(url) == ["s"]
    assert status("DELETE", "/api/studies/1", Origin=f"http://{address}") == 204
    assert optuna.get_all_study_names(url) == []


def test_the_dashboard_listens_on_loopback_and_warns_elsewhere(url: str) -> None:
    open_storage(url).engine.dispose()
    command = [sys.executable, "-m", "llm_sampler.scripts.main", "dashboard", "--storage", url, "--port", "0"]
    lines = []
    for host in ((), ("--host", "0.0.0.0")):
        with subprocess.Popen([*command, *host], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines.append([process.stdout.readline() for _ in range(1 + bool(host))])
            process.terminate()
    assert "at http://127.0.0.1:" in lines[0][0]
    assert "at http://0.0.0.0:" in lines[1][0]
    assert "has no authentication: whoever reaches it can read, change and delete studies" in lines[1][1]
