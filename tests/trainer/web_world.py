"""A web server over a folder, for tests: with or without parts of files, and with faults."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Web:
    """What it serves, how, and what it was asked."""

    folder: Path
    url: str = ""
    gives_parts: bool = True
    failing: int = 0  # so many requests are answered with 503 first
    forbidden: str = ""  # a path that is answered with 403
    change: Callable[[str, int, bytes], bytes] | None = (
        None  # (path, number of the answer, content) -> content
    )
    asked: list[tuple[str, str, int]] = field(default_factory=list)  # (method, path, bytes answered)

    def sent(self, ending: str) -> int:
        """Bytes of GET answers for paths that end so."""
        return sum(size for method, path, size in self.asked if method == "GET" and path.endswith(ending))

    def gets(self, ending: str) -> int:
        return sum(method == "GET" and path.endswith(ending) for method, path, _ in self.asked)


@contextmanager
def served(folder: Path) -> Iterator[Web]:
    web = Web(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._serve(with_body=False)

        def do_GET(self) -> None:
            self._serve(with_body=True)

        def _serve(self, *, with_body: bool) -> None:
            file = web.folder / self.path.lstrip("/")
            if web.failing:
                web.failing -= 1
                self._answer(503, b"", {}, with_body)
            elif web.forbidden and self.path.endswith(web.forbidden):
                self._answer(403, b"", {}, with_body)
            elif not file.is_file():
                self._answer(404, b"", {}, with_body)
            else:
                self._give(file.read_bytes(), with_body)

        def _give(self, content: bytes, with_body: bool) -> None:
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}
            status, part = 200, content
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if wanted and web.gives_parts:
                first, last = int(wanted[1]), min(int(wanted[2]), len(content) - 1)
                status, part = 206, content[first : last + 1]
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            if with_body and web.change:
                part = web.change(self.path, web.gets(self.path), part)
            self._answer(status, part, headers, with_body)

        def _answer(self, status: int, content: bytes, headers: dict[str, str], with_body: bool) -> None:
            web.asked.append((self.command, self.path, len(content)))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
