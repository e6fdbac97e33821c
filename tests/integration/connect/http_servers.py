"""HTTP servers for tests, on real sockets: one that answers as a script says, and the bulk API of a search server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Reply:
    status: int = 200
    text: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    before: Callable[[], object] = lambda: None  # called before the answer is sent
    is_dropped: bool = False  # the connection is closed without an answer


Answers = Callable[[str, bytes], Reply]  # path and body


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    """The URL of a server that answers with these."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            reply = answers(self.path, body)
            reply.before()
            if reply.is_dropped:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            content = reply.text.encode()
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Clients that give up are part of the tests."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class SearchServer:
    """Keeps documents with their versions, as `_bulk` with external versions does.

    `interfere` may answer instead, before anything is written (a Reply), or for an item (its status).
    """

    documents: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    versions: dict[tuple[str, str], int] = field(default_factory=dict)
    requests: int = 0
    written: int = 0
    interfere: Callable[[int], Reply | None] = lambda _: None
    interfere_item: Callable[[int, str], int | None] = lambda _, __: None
    drop_after: Callable[[int], bool] = lambda _: False  # the request is done, and its answer is lost
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, path: str, body: bytes) -> Reply:
        with self._lock:
            number, self.requests = self.requests, self.requests + 1
            if (reply := self.interfere(number)) is not None:
                return reply
            assert path.startswith("/_bulk")
            lines = iter(body.decode().splitlines())
            items = [self._item(number, json.loads(line), lines) for line in lines]
        has_errors = any(entry["status"] > 299 for item in items for entry in item.values())
        text = json.dumps({"errors": has_errors, "items": items})
        return Reply(text=text, is_dropped=self.drop_after(number))

    def _item(self, number: int, action: dict[str, Any], lines: Iterator[str]) -> dict[str, Any]:
        ((name, head),) = action.items()
        document = None if name == "delete" else json.loads(next(lines))
        status = self.interfere_item(number, head["_id"]) or self._write(name, head, document)
        return {name: {"status": status, **({"error": {"type": "t", "reason": "r"}} if status > 299 else {})}}

    def _write(self, name: str, head: dict[str, Any], document: dict[str, Any] | None) -> int:
        key = head["_index"], head["_id"]
        if "version" in head:
            if head["version"] <= self.versions.get(key, -1):
                return 409
            self.versions[key] = head["version"]
        if document is not None and not isinstance(document.get("n"), int):
            return 400  # the mapping of n is a number
        self.written += 1
        if document is None:
            return 200 if self.documents.pop(key, None) else 404
        self.documents[key] = document
        return 200
