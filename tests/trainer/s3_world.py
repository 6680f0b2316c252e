"""A real S3 server for tests, versitygw over a folder, with a proxy before it that can be slow, refuse and lose parts.

The program is built by `tools.s3_server`, once. On a machine without Go the tests that need it are skipped, and say
that nothing about buckets was tested; where CI is set they fail instead, as they do when it cannot be built.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

KEY, SECRET = "tester", "only-a-test"
BUCKET = "runs"
_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "content-length"})


def program() -> Path:
    """versitygw, built once."""
    if not shutil.which("go") and not os.environ.get("CI"):
        pytest.skip(
            "nothing about buckets is tested: go is not on this machine, and the S3 server is compiled with it"
        )
    root = Path(__file__).parents[2]
    made = subprocess.run(
        [sys.executable, "-m", "tools.s3_server"],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert made.returncode == 0, f"no S3 server, so nothing about buckets was tested: {made.stderr.strip()}"
    return Path(made.stdout.strip())


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Serves the folder; the URL. The bucket is there."""
    data = folder / "s3"
    (data / BUCKET).mkdir(parents=True)
    port = free_port()
    log = (folder / "s3.log").open("wb")
    command = [str(program()), "--access", KEY, "--secret", SECRET, "--port", f"127.0.0.1:{port}", "posix"]
    command += ["--sidecar", str(folder / "sidecar"), str(data)]
    (folder / "sidecar").mkdir()
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        _wait_until_served(port, process, folder / "s3.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
        log.close()


def _wait_until_served(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
            return
        except urllib.error.HTTPError:
            return  # it answers: who asks without a signature is refused
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"the S3 server did not start: {log.read_text()}")


def environment(url: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@dataclass
class Faults:
    """What the proxy does to requests whose method and path match; the rest passes."""

    slow_seconds: float = 0.0
    refuse: str = (
        ""  # regular expression on "PUT /runs/a/b?query": answered with 503, without being passed on
    )
    cut: str = ""  # once: the connection is closed without an answer, after the server has done it
    lose: str = ""  # answered as if it had been done
    seen: list[str] = field(default_factory=list)

    def clear(self) -> None:
        self.slow_seconds, self.refuse, self.cut, self.lose = 0.0, "", "", ""


@contextmanager
def fault_proxy(url: str, faults: Faults) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = f"{self.command} {self.path}"
            faults.seen.append(asked)
            if faults.slow_seconds:
                time.sleep(faults.slow_seconds)
            if faults.refuse and re.search(faults.refuse, asked):
                self._answer(503, {}, b"<Error><Code>SlowDown</Code><Message>later</Message></Error>")
                return
            if faults.lose and re.search(faults.lose, asked):
                self._answer(200, {"ETag": '"00000000000000000000000000000000"'}, b"")
                return
            status, headers, content = _forward(url, self.command, self.path, dict(self.headers), body)
            if faults.cut and re.search(faults.cut, asked):
                faults.cut = ""
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._answer(status, headers, content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

        def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            length = headers.get("Content-Length") if self.command == "HEAD" else None
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _forward(
    url: str, method: str, path: str, headers: dict[str, str], body: bytes
) -> tuple[int, dict[str, str], bytes]:
    """The signature covers the host that the client named, so it is passed on as it came."""
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name.lower() not in ("connection", "expect"):
                connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def use(url: str, monkeypatch: Any) -> None:
    """This process talks to that server from now on."""
    from trainer.checkpoint import s3_store, store

    for name, value in environment(url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr(s3_store, "PAUSES", (0.05, 0.05))
    s3_store._file_system.cache_clear()
    store.store_of.cache_clear()
