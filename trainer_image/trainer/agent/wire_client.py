"""One HTTP connection to membership, kept alive: a message out, a message back, and errors as types.

With credentials it is HTTPS to a server that their authority vouches for, and to no other. Not thread-safe: each
thread has its own. It never retries; whoever calls decides what a failure means.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trainer.agent.credentials import Credentials
from trainingrun.protocol import wire

T = TypeVar("T")

CONNECT_SECONDS = 1.0
TLS_CONNECT_SECONDS = 3.0  # a server that has just come back makes handshakes with a thousand agents


class Unreachable(Exception):
    """No answer, or one that does not make sense: try again later."""


class Untrusted(Unreachable):
    """Somebody answers who is not membership, or cannot prove it: treated as no answer."""


class Refused(Exception):
    """Membership's own error: RunGone, StaleIncarnation, UnknownSession, ProtocolMismatch, BadMessage, …"""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message or code)
        self.code = code


class Connection:
    def __init__(self, url: str, run_uid: str, credentials: Credentials | None = None) -> None:
        """`credentials`: where pods are real ones; `url` is an https one then."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._path = f"{parts.path}/v1/runs/{run_uid}"
        self._credentials = credentials
        self._connection: http.client.HTTPConnection | None = None

    def call(self, what: str, message: Any, reply: type[T], timeout_seconds: float) -> T:
        """POST `message`; raises Unreachable or Refused."""
        body = json.dumps(wire.to_json(message)).encode()
        try:
            status, data = self._exchange(f"{self._path}/{what}", body, timeout_seconds)
        except ssl.SSLCertVerificationError as error:
            self.close()
            where = self._credentials.authority if self._credentials else ""
            raise Untrusted(
                f"the server at {self._host} is not the one that {where} vouches for: {error.verify_message}"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        try:
            answer = json.loads(data)
            if status == 200:
                return wire.from_json(reply, answer)
            code, text = str(answer["error"]), str(answer.get("message", ""))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Not membership's way to speak: a proxy's page, or a body cut short.
            raise Unreachable(f"HTTP {status} with an answer that makes no sense: {error}") from error
        if status == 503:
            raise Unreachable(f"it cannot answer now: {text or code}")
        raise Refused(code, text)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _exchange(self, path: str, body: bytes, timeout_seconds: float) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        if self._credentials is not None:
            headers["Authorization"] = self._credentials.header()
        connection = self._connected()
        connection.sock.settimeout(timeout_seconds)
        connection.request("POST", path, body, headers)
        with connection.getresponse() as response:
            return response.status, response.read()

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None or self._connection.sock is None:
            connection = self._new()
            connection.connect()  # which also turns off the delay of small packets
            self._connection = connection
        return self._connection

    def _new(self) -> http.client.HTTPConnection:
        if self._credentials is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        context = self._credentials.context()
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=TLS_CONNECT_SECONDS, context=context
        )
