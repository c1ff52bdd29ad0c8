"""A real HTTP server on loopback that speaks chat completions, or whatever a test wants it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """One request; what a test's function gets to answer it."""

    protocol_version = "HTTP/1.1"
    server: ChatServer

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body: dict[str, Any] = json.loads(self.rfile.read(length) or b"{}")
        self.server.requests.append(Request(self.path, self.body, {k.lower(): v for k, v in self.headers.items()}))
        self.server.respond(self)

    def do_GET(self) -> None:
        self.body = {}
        self.server.requests.append(Request(self.path, {}, {k.lower(): v for k, v in self.headers.items()}))
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "test"} for name in self.server.models]
        self.send(json.dumps({"object": "list", "data": data}))

    def send(
        self,
        body: str | bytes,
        *,
        status: int = 200,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        """A response; a ``length`` beyond the body's makes one that breaks off."""
        data = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        if length is not None:
            self.close_connection = True

    def send_error_text(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        """An error as OpenAI's server words it."""
        self.send(json.dumps({"error": {"message": message}}), status=status, headers=headers)

    def send_text(self, text: str | None, **message: Any) -> None:
        """A chat completion with this content."""
        self.send(json.dumps(completion(text, **message)))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests read ``requests``."""


def completion(text: str | None, *, finish: str = "stop", **message: Any) -> dict[str, Any]:
    """The body of a chat completion."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "test-model-1",
        "choices": [
            {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
        ],
        "usage": {"prompt_tokens": 120, "completion_tokens": 30, "total_tokens": 150},
    }


@dataclass
class Request:
    """What was asked of the server."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


class ChatServer(ThreadingHTTPServer):
    """The server; ``respond`` answers POST requests."""

    daemon_threads = True
    # Not to wait for requests that a test has given up.
    block_on_close = False

    def __init__(self, respond: Callable[[Handler], None], models: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.respond = respond
        self.models = models
        self.requests: list[Request] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def chats(self) -> list[Request]:
        return [request for request in self.requests if request.path.endswith("/chat/completions")]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients that hang up are part of the tests."""


@contextmanager
def chat_server(respond: Callable[[Handler], None], models: tuple[str, ...] = ("test-model",)) -> Iterator[ChatServer]:
    """A running server."""
    server = ChatServer(respond, list(models))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
