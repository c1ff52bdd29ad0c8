from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from llm_sampler.studies.archive import ArchiveError, open_storage, shown, study_name


def test_a_sqlite_storage_is_created_in_write_ahead_mode_with_heartbeats(tmp_path: Path) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/new.db")
    optuna.create_study(storage=storage, study_name="s")
    assert storage.get_heartbeat_interval() is not None
    connection = sqlite3.connect(tmp_path / "new.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_four_processes_can_create_one_storage_at_once(tmp_path: Path) -> None:
    code = f"from llm_sampler.studies.archive import open_storage; open_storage('sqlite:///{tmp_path}/s.db')"
    processes = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    outcomes = [process.communicate()[1].decode() for process in processes]
    assert outcomes == [""] * 4


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "tuning.db",
            "must be a database URL such as sqlite:///tuning.db or postgresql://user@host/database, got 'tun",
        ),
        ("", "must be a database URL"),
        ("postgresql://u:hunter2@host:port/x", "must be a database URL"),
        ("redis://u:hunter2@host/1", "redis"),
        ("sqlite:////nowhere/at/all/x.db", "in a folder that can be written"),
        ("sqlite:////proc/x.db", "in a folder that can be written"),
        ("sqlite:///{folder}", "in a folder that can be written"),
        ("sqlite:///{folder}/text.db", "it must be a SQLite file"),
        ("postgresql+nodriver://u:hunter2@host/x?password=hunter2", "nodriver"),
        ("oracle://u:hunter2@host/x", "which is not installed; sqlite:///tuning.db needs nothing"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line_without_password(tmp_path: Path, url: str, message: str) -> None:
    (tmp_path / "text.db").write_text("no database\n" * 1000)
    with pytest.raises(ArchiveError) as caught:
        open_storage(url.format(folder=tmp_path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("scheme", "extra"), [("postgresql", "postgres"), ("mysql", "mysql")])
def test_a_missing_driver_names_the_extra(scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("psycopg", "pymysql"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ArchiveError, match=rf"pip install 'optuna-llm-sampler\[{extra}\]'") as caught:
        open_storage(f"{scheme}://u:hunter2@127.0.0.1:1/x")
    assert "hunter2" not in str(caught.value)


def test_a_read_only_file_is_refused_before_a_trial_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_storage(f"sqlite:///{tmp_path}/s.db").engine.dispose()
    with pytest.raises(ArchiveError, match="readonly database"):
        open_storage(f"sqlite:///file:{tmp_path}/s.db?mode=ro&uri=true")


def test_what_is_shown_of_a_url_has_no_secret() -> None:
    assert shown("postgresql://user:hunter2@host/db?password=hunter2") == "postgresql+psycopg://user:***@host/db"
    assert shown("sqlite:///tuning.db") == "sqlite:///tuning.db"


def test_study_names_are_readable_and_bounded() -> None:
    name = study_name("matmul", "M16-fp16", "NVIDIA H200", "1f3a9c2e", "replay-9d1c33aa", "", "mine/own")
    assert name == "matmul/M16-fp16/NVIDIA-H200/1f3a9c2e/replay-9d1c33aa/mine-own"
    assert study_name("toy", "", "", "1f3a9c2e") == "toy/any-problem/unknown-device/1f3a9c2e"
    with pytest.raises(ArchiveError, match="at most 512 characters, got 5"):
        study_name("matmul", "M16-fp16", "NVIDIA H200", "1f3a9c2e", "x" * 500)
