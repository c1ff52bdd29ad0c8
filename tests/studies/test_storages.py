from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import TrialState

from llm_sampler import DistinctSampler
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.studies import storages
from llm_sampler.studies.archive import ArchiveError, existing, reading, shown
from llm_sampler.studies.entry import Entry
from llm_sampler.studies.loop import Limits, tune
from llm_sampler.studies.query import list_studies
from llm_sampler.studies.records import read_records
from llm_sampler.studies.result import TuneResult
from llm_sampler.studies.storages import close, open_any
from llm_sampler.task import Task


def run(storage: BaseStorage, evaluator: ReplayEvaluator, task: Task, trials: int = 12) -> TuneResult:
    entry = Entry("toy", None, evaluator.device, task.space.digest(), "0123abcd")
    sampler = DistinctSampler(optuna.samplers.RandomSampler(seed=0), seed=0)
    limits = Limits(trials=trials)
    return tune(evaluator, task, storage=storage, study_name="s", sampler=sampler, limits=limits, entry=entry)


@pytest.fixture
def proxy(url: str) -> Iterator[str]:
    """A proxy before a SQLite file."""
    pytest.importorskip("grpc", reason="no gRPC here: pip install grpcio protobuf")
    from optuna.storages._grpc.server import make_server

    database = storages.open_storage(url)
    threads = ThreadPoolExecutor(2)
    server = make_server(optuna.storages.get_storage(database), "127.0.0.1", 0, threads)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(None).wait()
    threads.shutdown()
    database.engine.dispose()


def test_a_study_lives_in_a_journal(tmp_path: Path, evaluator: ReplayEvaluator, task: Task) -> None:
    url = f"journal:///{tmp_path}/tuning.log"
    storage = open_any(url)
    assert run(storage, evaluator, task).measured == 12
    assert run(storage, evaluator, task, 15).measured_before == 12
    close(storage)
    with existing(url) as copy:
        study = optuna.load_study(study_name="s", storage=copy)
        assert sum(record.measured for record in read_records(study)) == 15
    with reading(url) as engine:
        (overview,) = list_studies(engine)
    assert (overview.measured, overview.entry and overview.entry.kernel) == (15, "toy")


def test_a_study_lives_behind_a_proxy(proxy: str, url: str, evaluator: ReplayEvaluator, task: Task) -> None:
    storage = open_any(proxy)
    assert run(storage, evaluator, task).measured == 12
    close(storage)
    database = RDBStorage(url)
    trials = optuna.load_study(study_name="s", storage=database).trials
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED}
    database.engine.dispose()


def test_workers_of_a_proxy_that_is_away_wait_for_it(url: str, evaluator: ReplayEvaluator, task: Task) -> None:
    pytest.importorskip("grpc", reason="no gRPC here: pip install grpcio protobuf")
    from optuna.storages._grpc.server import make_server

    database = storages.open_storage(url)

    def start(port: int) -> tuple[object, ThreadPoolExecutor, int]:
        threads = ThreadPoolExecutor(2)
        server = make_server(optuna.storages.get_storage(database), "127.0.0.1", 0, threads)
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        return server, threads, port

    server, threads, port = start(0)
    storage = open_any(f"grpc://127.0.0.1:{port}")
    run(storage, evaluator, task, 3)
    server.stop(None).wait()  # type: ignore[attr-defined]
    threads.shutdown()
    with ThreadPoolExecutor(1) as other:
        going = other.submit(run, storage, evaluator, task, 6)
        server, threads, _ = start(port)
        assert going.result(timeout=60).measured == 6
    close(storage)
    server.stop(None).wait()  # type: ignore[attr-defined]
    threads.shutdown()
    database.engine.dispose()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("journal:////nowhere/at/all/x.log", "must be a file in a folder that can be written"),
        ("grpc://", "must be a proxy's URL such as grpc://host:13000"),
        ("grpc://host:port", "must be a proxy's URL such as grpc://host:13000"),
        ("grpc://127.0.0.1:9", "no gRPC proxy answers at grpc://127.0.0.1:9"),
        ("nothing", "must be a database URL"),
    ],
)
def test_what_cannot_be_used_is_one_line(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc", reason="no gRPC here: pip install grpcio protobuf")
    monkeypatch.setattr(storages, "_GRPC_WAIT_S", 0.2)
    with pytest.raises(ArchiveError) as caught:
        open_any(url)
    assert message in str(caught.value)


def test_commands_that_ask_say_what_they_need(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"), existing(f"journal:///{tmp_path}/none.log"):
        pass
    with pytest.raises(ArchiveError, match="give this command the database's own URL"), existing("grpc://host"):
        pass
    (tmp_path / "text.log").write_text("no journal\n")
    with pytest.raises(ArchiveError, match="cannot use storage"), existing(f"journal:///{tmp_path}/text.log"):
        pass
    assert shown("grpc://host:13000") == "grpc://host:13000"
    assert shown("journal:///tuning.log") == "journal:///tuning.log"


def test_a_worker_on_another_device_is_refused(storage: RDBStorage, evaluator: ReplayEvaluator, task: Task) -> None:
    run(storage, evaluator, task, 3)
    sampler = DistinctSampler(optuna.samplers.RandomSampler(seed=0), seed=0)
    limits = Limits(trials=9)
    other = Entry("toy", None, "Other GPU", task.space.digest(), "0123abcd")
    with pytest.raises(ArchiveError, match=r"replayed, of Toy GPU, .* of Other GPU: .*: llm-sampler tune toy$"):
        tune(evaluator, task, storage=storage, study_name="s", sampler=sampler, limits=limits, entry=other)
    live = Entry("toy", None, evaluator.device, task.space.digest())
    with pytest.raises(ArchiveError, match=r"are replayed, of Toy GPU, and those here of Toy GPU: they do not compare"):
        tune(evaluator, task, storage=storage, study_name="s", sampler=sampler, limits=limits, entry=live)
    assert len(optuna.load_study(study_name="s", storage=storage).trials) == 3
