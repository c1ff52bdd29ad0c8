from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
import sqlalchemy.exc
from database_servers import NoServerError, Postgres, Server, fresh_database, running
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from llm_sampler import DistinctSampler
from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.space import Configuration
from llm_sampler.studies.archive import open_storage
from llm_sampler.studies.loop import Limits, tune
from llm_sampler.studies.patience import PatientStorage, is_passing
from llm_sampler.studies.run_storage import RunStorage
from llm_sampler.studies.storages import close, open_any
from llm_sampler.task import Task


class Lost(Exception):
    """What the driver of a database that is no SQLite file says of a lost connection."""


def lost() -> StorageInternalError:
    error = StorageInternalError("An exception is raised during the commit.")
    error.__cause__ = sqlalchemy.exc.OperationalError("COMMIT", {}, Lost("server closed the connection"))
    return error


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Loses the request, or only the answer, of the next calls of a method."""

    def lose_calls(method: str, *, answers: int = 0, requests: int = 0) -> None:
        original = getattr(RunStorage, method)
        left = {"answers": answers, "requests": requests}

        def call(self: RunStorage, *arguments: object, **options: object) -> object:
            if left["requests"]:
                left["requests"] -= 1
                raise lost()
            result = original(self, *arguments, **options)
            if left["answers"]:
                left["answers"] -= 1
                raise lost()
            return result

        monkeypatch.setattr(RunStorage, method, call)

    return lose_calls


@pytest.mark.parametrize(
    "method",
    ["create_new_trial", "flush", "set_trial_state_values", "set_trial_system_attr", "get_all_trials", "get_trial"],
)
@pytest.mark.parametrize("what", ["answers", "requests"])
def test_a_run_goes_on_when_a_call_is_lost(
    method: str,
    what: str,
    lose: Callable[..., None],
    storage: RDBStorage,
    evaluator: ReplayEvaluator,
    task: Task,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lose(method, **{what: 2})
    optuna.logging.enable_propagation()
    sampler = DistinctSampler(optuna.samplers.RandomSampler(seed=0), seed=0)
    result = tune(evaluator, task, storage=storage, study_name="s", sampler=sampler, limits=Limits(trials=6))
    optuna.logging.disable_propagation()
    assert result.measured == 6
    trials = optuna.load_study(study_name="s", storage=storage).trials
    assert not any(trial.state == TrialState.RUNNING for trial in trials)
    assert len({str(trial.params) for trial in trials if trial.params}) == 6
    # Nobody knows a trial whose making, or whose taking from the queue, was not answered: it fails in the end.
    unknown = what == "answers" and method in ("create_new_trial", "set_trial_state_values")
    assert sum(trial.state == TrialState.FAIL for trial in trials) == unknown
    assert "does not answer (server closed the connection); trying again" in caplog.text


def test_what_may_pass() -> None:
    assert is_passing(lost())
    again = StorageInternalError()
    again.__cause__ = sqlalchemy.exc.PendingRollbackError("Can't reconnect until invalid transaction is rolled back.")
    assert is_passing(again)
    for lasting in (sqlalchemy.exc.ProgrammingError("SELECT", {}, Lost("no such table")), ValueError()):
        again.__cause__ = lasting
        assert not is_passing(again)


def test_patience_ends(lose: Callable[..., None], storage: RDBStorage) -> None:
    patient = PatientStorage(storage, patience_s=0.3)
    lose("get_all_studies", requests=1000)
    started = time.monotonic()
    with pytest.raises(StorageInternalError):
        patient.get_all_studies()
    assert time.monotonic() - started < 10


def test_what_no_waiting_mends_is_raised_at_once(storage: RDBStorage) -> None:
    patient = PatientStorage(storage)
    with storage.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE studies")
    started = time.monotonic()
    with pytest.raises(StorageInternalError):
        patient.get_all_studies()
    assert time.monotonic() - started < 60


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[Server]:
    """A PostgreSQL server that may be stopped."""
    try:
        with running(Postgres) as server:
            yield server
    except NoServerError as error:
        pytest.skip(str(error))


class SlowEvaluator(ReplayEvaluator):
    """Takes 20 ms a configuration, two at once."""

    parallel = 2

    def evaluate(self, configuration: Configuration) -> Measurement:
        time.sleep(0.02)
        return super().evaluate(configuration)


@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxy"])
def test_a_run_outlives_its_server(own_postgres: Server, evaluator: ReplayEvaluator, task: Task, proxy: bool) -> None:
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(fresh_database(own_postgres.url()))
        if proxy:
            url = stack.enter_context(proxy_before(url))
        storage = open_any(url)
        stack.callback(close, storage)
        sampler = DistinctSampler(optuna.samplers.RandomSampler(seed=0), seed=0)

        def restart() -> None:
            for _ in range(2):
                time.sleep(0.3)
                own_postgres.stop()
                own_postgres.start()

        thread = threading.Thread(target=restart)
        thread.start()
        slow = SlowEvaluator(evaluator.recording)
        result = tune(slow, task, storage=storage, study_name="s", sampler=sampler, limits=Limits(trials=70))
        assert thread.is_alive() or result.seconds > 0.6  # else the run was over before the server was stopped
        thread.join()
        assert result.measured == 70
        done = [record for record in result.records if record.measured]
        assert len({record.key for record in done}) == 70
        states = {record.state for record in result.records}
        assert states <= {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}


@contextlib.contextmanager
def proxy_before(url: str) -> Iterator[str]:
    """A gRPC proxy before a database."""
    pytest.importorskip("grpc", reason="no gRPC here: pip install grpcio protobuf")
    from optuna.storages._grpc.server import make_server

    database = open_storage(url)
    threads = ThreadPoolExecutor(4)
    server = make_server(optuna.storages.get_storage(database), "127.0.0.1", 0, threads)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
        threads.shutdown()
        database.engine.dispose()
