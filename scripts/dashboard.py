"""`llm-sampler dashboard`: the archive in a browser, while studies run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llm_sampler.scripts.storage import DEFAULT_ARTIFACTS, DEFAULT_STORAGE, Artifacts, Storage

if TYPE_CHECKING:
    from optuna.artifacts._protocol import ArtifactStore
    from optuna.storages import BaseStorage

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_READING = ("GET", "HEAD")


class DashboardError(RuntimeError):
    """The dashboard cannot be shown here; the message says the remedy."""


def dashboard(
    storage: Storage = DEFAULT_STORAGE,
    host: Annotated[str, typer.Option(help="Address to listen on; the default is reached from this machine only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8080,
    artifacts: Artifacts = DEFAULT_ARTIFACTS,
    browser: Annotated[bool, typer.Option("--browser", help="Open it in this machine's browser.")] = False,
) -> None:
    """Show the archive in a browser, live: history, columns, notes with the LLM's reasons, speedups, conversations.

    Studies may run meanwhile, here or anywhere. Ctrl-C ends it.
    """
    import webbrowser

    from llm_sampler.studies.archive import shown
    from llm_sampler.studies.dashboard_view import dashboard_view
    from llm_sampler.studies.storages import watching

    if importlib.util.find_spec("optuna_dashboard") is None:
        raise DashboardError("the dashboard needs a package: pip install 'optuna-llm-sampler[dashboard]'")
    with watching(storage) as archive:
        server = make_server(dashboard_view(archive), host, port, artifacts)
        with server:
            address = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/"
            print(f"{shown(storage)} at {address} (Ctrl-C ends it)", flush=True)
            if host not in _LOOPBACK:
                print(_warning(host, server.server_port), flush=True)
            if browser:
                webbrowser.open(address)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                print("ended")


def _warning(host: str, port: int) -> str:
    return (
        f"Warning: {host} may be reached from other machines, and the dashboard has no authentication: whoever reaches "
        "it can read, change and delete studies. Safer: leave --host out, and on the other machine "
        f"ssh -L {port}:127.0.0.1:{port} THIS_MACHINE"
    )


def make_server(storage: BaseStorage, host: str, port: int, artifacts: Path) -> Any:
    """The web server, bound and not yet serving: a `wsgiref.simple_server.WSGIServer`.

    Raises:
        DashboardError: The address cannot be had.
    """
    import socket
    from socketserver import ThreadingMixIn
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    from optuna.artifacts import FileSystemArtifactStore
    from optuna_dashboard import wsgi

    class Server(ThreadingMixIn, WSGIServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *_: object) -> None:
            """Nothing: a page that is open asks every few seconds."""

    store: ArtifactStore | None = FileSystemArtifactStore(artifacts) if artifacts.is_dir() else None
    try:
        server = Server((host, port), Quiet)
    except OSError as error:
        raise DashboardError(f"cannot listen on {host}:{port} ({error.strerror}): give another --port") from None
    server.set_app(guarded(wsgi(storage, artifact_store=store), local=host in _LOOPBACK))
    return server


def guarded(application: Application, *, local: bool) -> Application:
    """The application, without what other web sites could do with it through the browser of who looks.

    optuna-dashboard answers whoever asks. A page of another site may send it requests (and, having its own name
    resolve to 127.0.0.1, even read the answers), so changes must come from its own pages, and a server for this machine
    only must be asked for by one of this machine's names.

    Args:
        application: A WSGI application.
        local: Whether it listens on loopback only.
    """

    def checked(environment: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        host = environment.get("HTTP_HOST", "")
        name = host.rpartition(":")[0].strip("[]") if host.rpartition(":")[2].isdigit() else host.strip("[]")
        origin = environment.get("HTTP_ORIGIN")
        foreign = environment["REQUEST_METHOD"] not in _READING and origin not in (None, f"http://{host}")
        if foreign or (local and name not in _LOOPBACK):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"This dashboard answers its own pages only."]

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, ("X-Content-Type-Options", "nosniff")], *rest)

        return application(environment, start)

    return checked
