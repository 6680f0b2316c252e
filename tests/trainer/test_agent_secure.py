"""An agent and the real membership service over HTTPS, with certificates and tokens that change on the way."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.agent_process import ROOT, AgentProcess, agents, wait_until

from trainer.agent.client import Client
from trainer.agent.credentials import Credentials
from trainer.agent.endings import BadConfiguration
from trainer.agent.inbox import Inbox
from trainer.agent.news import News
from trainer.agent.wire_client import Connection, Refused, Unreachable, Untrusted
from trainingrun.protocol import names
from trainingrun.protocol.messages import AgentPhase, Directive, JoinReply, JoinRequest, Report


class Service:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        setup = [sys.executable, str(ROOT / "tools" / "setup_env.py"), "operator"]
        python = subprocess.run(setup, check=True, capture_output=True, text=True).stdout.strip()
        path = os.pathsep.join([f"{ROOT}/operator", str(ROOT), os.environ.get("PYTHONPATH", "")])
        command = [python, "-m", "tests.trainer.secure_membership", str(folder)]
        with (folder / "log").open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": path}
            self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stderr=log, stdout=log)
        wait_until(lambda: self.lines(), 30, "the service listens")
        self.port = int(self.lines()[0])

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def lines(self) -> list[str]:
        path = self.folder / "records"
        return path.read_text().splitlines() if path.exists() else []

    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = Service(tmp_path_factory.mktemp("secure") / "service")
    yield started
    started.process.kill()
    started.process.wait()


class Files:
    """What a pod sees as its projected volume; replaced as the kubelet does it, never written in place."""

    def __init__(self, folder: Path, service: Service) -> None:
        self.folder, self.service = folder, service
        folder.mkdir(parents=True, exist_ok=True)
        self.credentials = Credentials(folder / "ca.crt", folder / "token")

    def project(self, authority: str = "ca.crt", token: str = "token-0-0") -> Files:
        for source, target in ((authority, self.credentials.authority), (token, self.credentials.token)):
            fresh = target.with_suffix(".new")
            shutil.copy(self.service.folder / source, fresh)
            fresh.replace(target)
        return self

    def connection(self) -> Connection:
        return Connection(self.service.url, "uid-1", self.credentials)


def a_join(slot: int = 0, session: str = "s") -> JoinRequest:
    return JoinRequest((1, 1), slot, 0, f"fake-{slot}-0", session, "n", "127.0.0.1", 1, 2, 2, "cpu")


def test_an_agent_bears_wrong_certificates_and_tokens_until_they_are_right_and_trains_on(
    tmp_path: Path, service: Service
) -> None:
    files = Files(tmp_path / "volume", service).project("other.crt", "token-unknown")
    environment = {
        names.ENV_MEMBERSHIP_CA: str(files.credentials.authority),
        names.ENV_MEMBERSHIP_TOKEN: str(files.credentials.token),
    }
    with agents(AgentProcess(tmp_path, service.url, 0, **environment)) as (agent,):
        log = agent.log.read_text
        wait_until(lambda: "is not the one that" in log(), 30, "the wrong authority is said")
        time.sleep(1.5)
        assert log().count("is not the one that") == 1  # said once, not at each attempt
        assert "joined" not in log()

        files.project("ca.crt", "token-unknown")
        wait_until(lambda: "does not take this pod's token (Unauthenticated)" in log(), 10)
        files.project()
        wait_until(lambda: "joined as slot 0" in log(), 10)
        agent.wait_notes("stepped", 1)

        files.project(token="token-1-0")  # another seat's: as bad as none
        wait_until(lambda: "does not take this pod's token (Forbidden)" in log(), 10)
        time.sleep(2.5)  # longer than membership waits before it counts a member as lost
        files.project()
        wait_until(lambda: log().count("joined as slot 0") == 2, 15, "joined again")
        assert len(agent.notes("entered", 1)) == 2  # the same ranks
        (agent.folder / "logs" / "finish").touch()
        assert agent.wait(30) == 0
        termination = agent.termination()
        assert termination is not None
        assert (termination.reason, termination.epoch) == ("Done", 1)


def test_a_connection_serves_as_long_as_it_lasts_while_the_token_is_renewed(
    tmp_path: Path, service: Service
) -> None:
    files = Files(tmp_path, service).project(token="token-1-0")
    connection = files.connection()
    connection.call("join", a_join(1, "kept"), JoinReply, 5)
    report = Report("kept", 1, AgentPhase.PREPARING)
    assert connection.call("report", report, Directive, 5).seq >= 0
    files.project("other.crt", "token-unknown")
    with pytest.raises(Refused, match="does not know this token") as refused:
        connection.call("report", report, Directive, 5)
    assert refused.value.code == "Unauthenticated"
    files.project("other.crt", "token-1-0")
    assert connection.call("report", report, Directive, 5).seq >= 0
    connection.close()
    with pytest.raises(Untrusted, match=r"is not the one that .*ca\.crt vouches for"):
        connection.call("report", report, Directive, 5)


def test_a_server_that_is_called_by_another_name_is_not_trusted(tmp_path: Path, service: Service) -> None:
    files = Files(tmp_path, service).project()
    other_name = f"https://127.1:{service.port}"  # the same address
    with pytest.raises(Untrusted, match=r"the server at 127\.1 is not the one that"):
        Connection(other_name, "uid-1", files.credentials).call("join", a_join(), JoinReply, 5)


@pytest.mark.parametrize("missing", ["ca.crt", "token"])
def test_a_file_that_is_not_there_is_a_line_that_is_broken(
    tmp_path: Path, service: Service, missing: str
) -> None:
    files = Files(tmp_path, service).project()
    (tmp_path / missing).unlink()
    with pytest.raises(Unreachable, match="No such file"):
        files.connection().call("join", a_join(), JoinReply, 5)
    (tmp_path / missing).write_text("")
    with pytest.raises((Unreachable, Refused)):
        files.connection().call("join", a_join(), JoinReply, 5)


def test_an_answer_that_membership_cannot_give_now_is_no_answer(tmp_path: Path) -> None:
    class Busy(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"error": "Unavailable", "message": "the API server is away"}'
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        connection = Connection(f"http://127.0.0.1:{server.server_address[1]}", "uid-1")
        with pytest.raises(Unreachable, match="it cannot answer now: the API server is away"):
            connection.call("join", a_join(), JoinReply, 5)
    finally:
        server.shutdown()
        server.server_close()


# how long an agent bears that its token is not taken


class Line:
    """A connection whose every call is refused, after `joins` that work."""

    def __init__(self, joins: int) -> None:
        self.joins, self.calls = joins, 0

    def call(self, what: str, message: object, reply: type, timeout_seconds: float) -> object:
        self.calls += 1
        if what == "join" and self.joins:
            self.joins -= 1
            return JoinReply(1, 0.05, 0.1, 2.0)
        raise Refused("Forbidden", "pod team/other-0-0 belongs to another run")

    def close(self) -> None:
        pass


def denied(joins: int, token_expired: bool, seconds: float = 1.5) -> tuple[Inbox, Line]:
    """The state after that time with a client that bears it for half a second."""
    inbox, line = Inbox(), Line(joins)
    client = Client(
        lambda: line,  # type: ignore[arg-type, return-value]
        a_join,
        News("s", 0, tuple),
        inbox,
        token_expired=lambda: token_expired,
        denied_seconds=0.5,
    )
    client.start()
    time.sleep(seconds)
    return inbox, line


def test_an_agent_that_was_never_a_member_ends_with_clear_words_when_its_token_is_never_taken() -> None:
    inbox, line = denied(joins=0, token_expired=False)
    with pytest.raises(
        BadConfiguration, match=r"for \d+ s \(Forbidden\): pod team/other-0-0 belongs.* Fix: "
    ):
        inbox.take()
    assert line.calls < 10  # with longer and longer pauses


def test_an_agent_that_was_a_member_is_never_ended_by_a_token_that_is_not_taken() -> None:
    inbox, line = denied(joins=1, token_expired=False)
    assert inbox.take() is None
    assert line.calls > 3


def test_an_agent_whose_token_ran_out_waits_for_the_next_one() -> None:
    inbox, _ = denied(joins=0, token_expired=True)
    assert inbox.take() is None
