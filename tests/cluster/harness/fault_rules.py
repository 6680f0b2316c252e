"""Which requests a fault proxy answers itself, and with what. Pure; the first rule that fits decides."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
HANG = 0  # as an answer: none at all


@dataclass(frozen=True)
class Request:
    """A request as the proxy has seen it. `answered` is the status given; HANG while or because there is none."""

    method: str
    path: str
    query: Mapping[str, str]
    answered: int = HANG
    by_rule: bool = False

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch", "").lower() in ("1", "true")


@dataclass
class Rule:
    """Requests of `method` ("" = any) whose path matches `path` (a regular expression) get `status`, or HANG.

    `watch` None means both kinds. `times` None means until it is withdrawn; `hits` counts.
    """

    status: int
    path: str = ""
    method: str = ""
    watch: bool | None = None
    times: int | None = None
    retry_after_seconds: int | None = None
    hits: int = field(default=0, init=False)

    def fits(self, request: Request) -> bool:
        return (
            (self.times is None or self.hits < self.times)
            and self.method in ("", request.method)
            and self.watch in (None, request.is_watch)
            and re.search(self.path, request.path) is not None
        )

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.retry_after_seconds is None else {"Retry-After": str(self.retry_after_seconds)}


def status_body(code: int) -> bytes:
    """The body with which a Kubernetes API server reports an error."""
    return json.dumps(_status(code)).encode()


def gone_event() -> bytes:
    """The line by which an API server says within a watch that its resource version is too old."""
    return json.dumps({"type": "ERROR", "object": _status(410)}).encode() + b"\n"


def _status(code: int) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": f"made by the fault proxy: {REASONS.get(code, 'Unknown')}",
        "reason": REASONS.get(code, "Unknown"),
        "code": code,
    }
