"""The fault proxy in front of a plain HTTP server that knows one list and one watch. Needs no cluster."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.cluster.harness.faultproxy import FaultProxy

PODS = "/api/v1/pods"


class Backend(BaseHTTPRequestHandler):
    """Answers with what it was asked; a watch gets one numbered line every few milliseconds."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "watch=true" in self.path:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for number in range(1000):
                    line = json.dumps({"type": "ADDED", "object": number}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    time.sleep(0.02)
            except OSError:
                self.close_connection = True
            return
        self._echo(b"")

    def do_POST(self) -> None:
        self._echo(self.rfile.read(int(self.headers["Content-Length"])))

    def _echo(self, body: bytes) -> None:
        asked = {"path": self.path, "body": body.decode(), "token": self.headers.get("Authorization")}
        data = json.dumps(asked).encode()
        self.send_response(201 if body else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with FaultProxy(f"http://127.0.0.1:{server.server_port}") as made:
        yield made
    server.shutdown()
    server.server_close()


def ask(
    proxy: FaultProxy, method: str = "GET", path: str = PODS, body: str = ""
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection(proxy.address, proxy.port, timeout=5)
    connection.request(method, path, body or None, {"Authorization": "Bearer abc"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.headers)


@contextmanager
def watching(proxy: FaultProxy, timeout: float = 5.0) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(proxy.address, proxy.port, timeout=timeout)
    connection.request("GET", f"{PODS}?watch=true")
    yield connection.getresponse()
    connection.close()


def number(answer: http.client.HTTPResponse) -> int:
    found: int = json.loads(answer.readline())["object"]
    return found


def test_without_a_command_a_request_and_its_token_are_passed_on(proxy: FaultProxy) -> None:
    status, text, _ = ask(proxy, "POST", f"{PODS}?dryRun=All%2C", "hello")
    assert status == 201
    assert json.loads(text) == {"path": f"{PODS}?dryRun=All%2C", "body": "hello", "token": "Bearer abc"}
    assert [(seen.method, seen.path, seen.answered) for seen in proxy.requests] == [("POST", PODS, 201)]


def test_a_watch_is_passed_on_line_by_line(proxy: FaultProxy) -> None:
    with watching(proxy) as answer:
        assert [number(answer) for _ in range(3)] == [0, 1, 2]


def test_a_stalled_watch_keeps_its_connection_and_loses_nothing(proxy: FaultProxy) -> None:
    with watching(proxy, timeout=0.5) as answer:
        number(answer)
        proxy.stall_watches()
        with pytest.raises(TimeoutError):
            while True:
                number(answer)
        assert proxy.open_watches == 1
        assert ask(proxy)[0] == 200  # everything else works
    with watching(proxy) as answer:
        assert answer.status == 200  # a new watch begins, and is silent
        proxy.resume_watches()
        assert [number(answer), number(answer)] == [0, 1]


def test_cut_watches_break_at_once(proxy: FaultProxy) -> None:
    with watching(proxy) as answer:
        number(answer)
        assert proxy.cut_watches() == 1
        with pytest.raises((OSError, http.client.HTTPException)):
            while answer.read(1):
                pass
            raise http.client.IncompleteRead(b"")


def test_an_expired_watch_says_so_in_the_stream_and_ends(proxy: FaultProxy) -> None:
    with watching(proxy) as answer:
        number(answer)
        assert proxy.expire_watches() == 1
        lines = [json.loads(line) for line in answer.read().splitlines()]
    assert lines[-1]["type"] == "ERROR"
    assert lines[-1]["object"]["code"] == 410


@pytest.mark.parametrize("status", [410, 429, 500])
def test_a_chosen_request_gets_a_chosen_error_as_often_as_told(proxy: FaultProxy, status: int) -> None:
    rule = proxy.answer(status, path="/pods$", method="GET", times=2, retry_after_seconds=3)
    assert ask(proxy, "POST", body="x")[0] == 201
    assert ask(proxy, path="/api/v1/nodes")[0] == 200
    answers = [ask(proxy) for _ in range(3)]
    assert [answer[0] for answer in answers] == [status, status, 200]
    assert json.loads(answers[0][1])["code"] == status
    assert answers[0][2]["Retry-After"] == "3"
    assert rule.hits == 2


def test_a_rule_for_watches_leaves_lists_alone(proxy: FaultProxy) -> None:
    proxy.answer(410, watch=True)
    assert ask(proxy)[0] == 200
    assert ask(proxy, path=f"{PODS}?watch=true")[0] == 410


def test_a_hanging_request_gets_no_answer_until_its_client_gives_up(proxy: FaultProxy) -> None:
    proxy.hang(path="/pods", times=1)
    connection = http.client.HTTPConnection(proxy.address, proxy.port, timeout=0.3)
    connection.request("GET", PODS)
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert ask(proxy)[0] == 200


def test_a_backend_that_is_away_looks_like_a_broken_connection() -> None:
    with FaultProxy("http://127.0.0.1:9") as proxy, pytest.raises((OSError, http.client.HTTPException)):
        ask(proxy)
