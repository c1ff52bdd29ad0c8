"""Databases for the tests: real servers, or one line that says how to get them."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import URL, make_url

sys.path.append(str(Path(__file__).parent / "support"))

from database_servers import MariaDB, NoServerError, Postgres, Server, fresh_database, running

# Continuous integration installs all that a test may need: there a test that finds nothing to run with has failed.
NOTHING_SKIPPED = "LLM_SAMPLER_TEST_NOTHING_SKIPPED"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns ``no PostgreSQL here: ...`` into a failure where nothing may be skipped."""
    report = yield
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if report.skipped and " here: " in reason and os.environ.get(NOTHING_SKIPPED):
        report.outcome, report.longrepr = "failed", f"{item.nodeid} may not be skipped: {reason}"
    return report


def _address(server_class: type[Server]) -> Iterator[URL]:
    if given := os.environ.get(server_class.variable):
        yield make_url(given)
        return
    try:
        with running(server_class) as server:
            yield server.url()
    except NoServerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[URL]:
    """A PostgreSQL server: that of LLM_SAMPLER_TEST_POSTGRES, else one of our own."""
    yield from _address(Postgres)


@pytest.fixture(scope="session")
def mysql_server() -> Iterator[URL]:
    """A MariaDB or MySQL server: that of LLM_SAMPLER_TEST_MYSQL, else one of our own."""
    yield from _address(MariaDB)


@pytest.fixture
def postgres_url(postgres_server: URL) -> Iterator[str]:
    """An empty PostgreSQL database's URL, with a password in it."""
    with fresh_database(postgres_server) as url:
        yield url


@pytest.fixture
def mysql_url(mysql_server: URL) -> Iterator[str]:
    """An empty MariaDB or MySQL database's URL, with a password in it."""
    with fresh_database(mysql_server) as url:
        yield url
