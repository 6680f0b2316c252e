"""Just enough of a Kubernetes client for the harness: one bounded request at a time, as the administrator.

Tests that need more use kubectl or a real client with `Cluster.kubeconfig`.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Callable
from typing import Any

from tests.cluster.harness import layout
from tests.cluster.harness.errors import HarnessError
from tests.cluster.harness.layout import Layout

TIMEOUT_SECONDS = 5.0


class ApiError(HarnessError):
    """The API server answered with an error. `status` is the HTTP status; 0 when it did not answer at all."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Api:
    """Requests to the API server through the relay on the host."""

    def __init__(self, cluster: Layout) -> None:
        self._pki = cluster.pki

    def request(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        """The decoded answer. Raises ApiError for every status from 400 on, and when there is no answer."""
        status, data = self.raw(method, path, body, kind)
        if status >= 400:
            raise ApiError(status, f"{method} {path}: {status} {data[:400].decode(errors='replace')}")
        decoded: dict[str, Any] = json.loads(data)
        return decoded

    def raw(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        try:
            context = ssl.create_default_context(cafile=str(self._pki / "ca.crt"))
            context.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
            connection = http.client.HTTPSConnection(
                "127.0.0.1", layout.HOST_API_PORT, timeout=TIMEOUT_SECONDS, context=context
            )
            try:
                data = None if body is None else json.dumps(body)
                connection.request(method, path, data, {"Content-Type": kind, "Accept": "application/json"})
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, f"{method} {path}: the API server does not answer ({error})") from error

    def get(self, path: str) -> dict[str, Any]:
        return self.request("GET", path)

    def ready(self) -> bool:
        try:
            return self.raw("GET", "/readyz")[0] == 200
        except ApiError:
            return False


def wait_until(
    what: str, condition: Callable[[], object], timeout_seconds: float, pause_seconds: float = 0.2
) -> None:
    """Waits for a condition. An API error counts as "not yet". Raises HarnessError naming what did not come."""
    deadline = time.monotonic() + timeout_seconds
    last = ""
    while True:
        try:
            if condition():
                return
        except ApiError as error:
            last = f" (last: {error})"
        if time.monotonic() > deadline:
            raise HarnessError(f"{what}: not within {timeout_seconds:.0f} s{last}")
        time.sleep(pause_seconds)
