"""One HTTP connection to membership, kept alive: a message out, a message back, and errors as types.

Not thread-safe: each thread has its own. It never retries; whoever calls decides what a failure means.
"""

from __future__ import annotations

import http.client
import json
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trainingrun.protocol import wire

T = TypeVar("T")

CONNECT_SECONDS = 1.0


class Unreachable(Exception):
    """No answer, or one that does not make sense: try again later."""


class Refused(Exception):
    """Membership's own error: RunGone, StaleIncarnation, UnknownSession, ProtocolMismatch or BadMessage."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message or code)
        self.code = code


class Connection:
    def __init__(self, url: str, run_uid: str) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port, timeout=CONNECT_SECONDS)
        self._path = f"{parts.path}/v1/runs/{run_uid}"

    def call(self, what: str, message: Any, reply: type[T], timeout_seconds: float) -> T:
        """POST `message`; raises Unreachable or Refused."""
        body = json.dumps(wire.to_json(message)).encode()
        try:
            status, data = self._exchange(f"{self._path}/{what}", body, timeout_seconds)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        try:
            answer = json.loads(data)
            if status == 200:
                return wire.from_json(reply, answer)
            raise Refused(str(answer["error"]), str(answer.get("message", "")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Not membership's way to speak: a proxy's page, or a body cut short.
            raise Unreachable(f"HTTP {status} with an answer that makes no sense: {error}") from error

    def close(self) -> None:
        self._connection.close()

    def _exchange(self, path: str, body: bytes, timeout_seconds: float) -> tuple[int, bytes]:
        connection = self._connection
        if connection.sock is None:
            connection.connect()  # which also turns off the delay of small packets
        connection.sock.settimeout(timeout_seconds)
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        with connection.getresponse() as response:
            return response.status, response.read()
