"""How the controller asks membership: over TLS of that one CA, with the token of the moment, and never for long."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trainingrun.cluster.kubernetes.certificates import new_authority, server_certificate, server_context
from trainingrun.cluster.kubernetes.membership_client import MembershipClient
from trainingrun.ports import Unavailable
from trainingrun.protocol import wire
from trainingrun.protocol.messages import RunView

NOW = datetime.now(UTC)
AUTHORITY, OTHER = new_authority("membership", NOW), new_authority("another", NOW)
VIEW = RunView("uid-demo", 3, (), None, False, "", "", None, False)


class Membership:
    """Answers with `VIEW`, and keeps the tokens that it saw."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.status = 200
        membership = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                membership.tokens.append(self.headers.get("Authorization", ""))
                body = json.dumps(wire.to_json(VIEW) if self.path == "/v1/runs/uid-demo" else {}).encode()
                self.send_response(membership.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """No news."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = server_context(server_certificate(AUTHORITY, ("127.0.0.1",), NOW))
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def membership() -> Iterator[Membership]:
    made = Membership()
    threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("first\n")
    return file


def client(
    membership: Membership, token: Path, certificate: str = AUTHORITY.certificate_pem
) -> MembershipClient:
    return MembershipClient(membership.url, lambda: certificate, token, 2.0)


def test_the_view_of_a_run_is_read(membership: Membership, token: Path) -> None:
    assert client(membership, token).view("uid-demo") == VIEW


def test_the_token_is_read_anew_for_each_question(membership: Membership, token: Path) -> None:
    asking = client(membership, token)
    asking.view("uid-demo")
    token.write_text("second")
    asking.view("uid-demo")
    assert membership.tokens == ["Bearer first", "Bearer second"]


def test_a_server_of_another_authority_is_not_asked(membership: Membership, token: Path) -> None:
    assert client(membership, token, OTHER.certificate_pem).view("uid-demo") is None
    assert membership.tokens == []


def test_an_authority_that_was_replaced_is_trusted_from_then_on(membership: Membership, token: Path) -> None:
    trusted = [OTHER.certificate_pem]
    asking = MembershipClient(membership.url, lambda: trusted[0], token, 2.0)
    assert asking.view("uid-demo") is None
    trusted[0] = AUTHORITY.certificate_pem
    assert asking.view("uid-demo") == VIEW


def test_nobody_is_trusted_while_no_authority_is_known(membership: Membership, token: Path) -> None:
    def unknown() -> str:
        raise Unavailable("membership has not started yet")

    assert MembershipClient(membership.url, unknown, token, 2.0).view("uid-demo") is None


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
def test_any_other_answer_is_none(membership: Membership, token: Path, status: int) -> None:
    membership.status = status
    assert client(membership, token).view("uid-demo") is None


def test_an_answer_that_is_no_view_is_none(membership: Membership, token: Path) -> None:
    assert client(membership, token).view("uid-other") is None


def test_a_row_of_failures_is_one_line_and_its_end_another(
    membership: Membership, token: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    asking = client(membership, token)
    membership.status = 503
    for _ in range(3):
        asking.view("uid-demo")
    membership.status = 200
    asking.view("uid-demo")
    said = [record.getMessage() for record in caplog.records if record.name.endswith("membership_client")]
    assert said == [
        f"membership at {membership.url} cannot be asked: it answers 503",
        "membership answers again",
    ]
