"""The Kubernetes API as plain dicts: a few verbs, each bounded in time and never retried behind the caller's back.

It knows HTTP and the API's conventions (status codes, paging, patch types) and no kind of object. Answers that are no
success become ports.Conflict, ports.Refused or ports.Unavailable. Used by everything that talks to a cluster.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config import incluster_config, kube_config
from kubernetes.config.config_exception import ConfigException

from trainingrun.api.errors import UserError
from trainingrun.ports import Conflict, Refused, Unavailable

PAGE = 500  # objects in one page of a LIST
JSON = "application/json"
YAML = "application/yaml"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # JSON is YAML
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

# Worth another try: not authenticated (a token is renewed), too many requests, a LIST that grew too old, timeouts.
_PASSING = frozenset({401, 408, 410, 429})
_CHUNK_BYTES = 1 << 16


class NoAccess(UserError):
    """There is no cluster to talk to: no service account, no kubeconfig, or one that cannot be used."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> dict[str, Any]:
        """The object in the body. Raises Unavailable when it is none: a proxy answered, or the end is missing."""
        try:
            value = json.loads(self.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Unavailable(f"the API server answered {self.status} with something that is no JSON object")
        return value


class Api:
    """One API server. Thread-safe. A path may carry a query of its own (`…?fieldManager=x`).

    Every call may raise Unavailable: no connection, no answer within `timeout_seconds`, too many requests, a fault of
    the server, or credentials that it does not take (they are renewed, so it may pass).
    """

    def __init__(self, client: ApiClient, timeout_seconds: float = 5.0) -> None:
        client.user_agent = "trainingrun"
        self._client = client
        self._timeout = timeout_seconds

    @classmethod
    def connect(cls, timeout_seconds: float = 5.0, context: str | None = None) -> Api:
        """The cluster that KUBECONFIG or `context` names, else the one that this pod runs in, else ~/.kube/config.

        Asks the server nothing. Raises NoAccess (a UserError).
        """
        configuration = Configuration()
        file = os.environ.get("KUBECONFIG", "")
        inside = incluster_config.SERVICE_HOST_ENV_NAME in os.environ
        try:
            if inside and not file and context is None:
                incluster_config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                where = file or str(Path.home() / ".kube" / "config")
                kube_config.load_kube_config(  # type: ignore[no-untyped-call]
                    where, context, configuration, persist_config=False
                )
        except (ConfigException, OSError, ValueError) as error:
            raise NoAccess(
                f"no access to a Kubernetes cluster: {error}\n"
                "  hint: set KUBECONFIG, or name a context that your kubeconfig has"
            ) from None
        return cls._of(configuration, timeout_seconds)

    @classmethod
    def at(cls, url: str, timeout_seconds: float = 5.0) -> Api:
        """A server that wants no credentials: `kubectl proxy`, or a stand-in."""
        return cls._of(Configuration(host=url), timeout_seconds)

    @classmethod
    def _of(cls, configuration: Configuration, timeout_seconds: float) -> Api:
        configuration.retries = urllib3.Retry(total=False, redirect=0)
        return cls(ApiClient(configuration), timeout_seconds)

    @property
    def configuration(self) -> Configuration:
        """Where the server is and how to log in there, for a client of another kind: a watch."""
        configuration: Configuration = self._client.configuration
        return configuration

    def get(self, path: str) -> dict[str, Any] | None:
        """The object, or None when there is none."""
        answer = self._ask("GET", path)
        return None if answer.status == 404 else _success(answer).json()

    def list(
        self, path: str, label_selector: str = "", *, metadata_only: bool = False
    ) -> list[dict[str, Any]]:
        """All objects of a collection, page by page; with `metadata_only`, their metadata. Refused when there is no
        such collection or reading it is forbidden."""
        items: list[dict[str, Any]] = []
        query = {"limit": str(PAGE)} | ({"labelSelector": label_selector} if label_selector else {})
        accept = METADATA_ONLY if metadata_only else JSON
        while True:
            page = _success(self._ask("GET", _with_query(path, query), accept=accept)).json()
            items += page.get("items") or []
            rest = (page.get("metadata") or {}).get("continue")
            if not rest:
                return items
            query["continue"] = rest

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST. Raises Conflict when the name is taken, and Refused."""
        # Sent as YAML, which JSON is: the API server then writes free-form parts (data of a ControllerRevision) anew
        # in its own way. Kept as they were sent, they differ from what it writes when anybody changes a label, and it
        # refuses the label, because data never changes.
        answer = self._ask("POST", path, body, YAML)
        if answer.status == 409 and answer.json().get("reason") == "Conflict":
            # Not the name: two creations raced for a quota, and this one may be tried again.
            raise Unavailable(str(answer.json().get("message")))
        return _success(answer).json()

    def apply(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]:
        """Server-side apply: the fields of `body` belong to `manager` from now on. Raises Refused."""
        query = {"fieldManager": manager, "force": "true"}
        return _success(self._ask("PATCH", _with_query(path, query), body, APPLY_PATCH)).json()

    def replace(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT. Raises Conflict when `metadata.resourceVersion` is not the newest, and Refused (NotFound: gone)."""
        return _success(self._ask("PUT", path, body)).json()

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """JSON merge patch. Raises Conflict and Refused (NotFound: gone)."""
        return _success(self._ask("PATCH", path, body, MERGE_PATCH)).json()

    def delete(self, path: str, uid: str = "") -> None:
        """Ask for deletion, of the object with this uid only. One that is gone, or another's by now, is fine."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions"}
        options = {**body, "preconditions": {"uid": uid}} if uid else body
        answer = self._ask("DELETE", path, options)
        if answer.status not in (404, 409):
            _success(answer)

    def text(self, path: str) -> str:
        """A text such as a pod's log. Raises Refused (NotFound: there is no such object)."""
        return _success(self._ask("GET", path, accept="text/plain, */*")).body.decode(errors="replace")

    def close(self) -> None:
        self._client.close()  # type: ignore[no-untyped-call]

    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Answer:
        until = time.monotonic() + self._timeout
        try:
            headers = {"Accept": accept, "Content-Type": content_type, **self._credentials()}
            url = self._client.configuration.host.rstrip("/") + path
            plain = dict(body) if body is not None else None
            reply = self._client.call_api(
                method, url, headers | self._client.default_headers, plain, _request_timeout=self._timeout
            )
            return Answer(reply.status, _read(reply.response, until))
        except (urllib3.exceptions.HTTPError, ApiException, ConfigException, OSError) as error:
            raise Unavailable(f"{method} {path}: {type(error).__name__}: {error}") from error

    def _credentials(self) -> dict[str, str]:
        """Read for each call: the kubelet renews the token of a service account."""
        token = self._client.configuration.auth_settings().get("BearerToken")
        return {} if token is None else {"Authorization": token["value"] or ""}


def _read(response: urllib3.BaseHTTPResponse, until: float) -> bytes:
    """The whole body. A server that sends a little from time to time must not hold the caller for ever."""
    chunks = []
    try:
        while chunk := response.read1(_CHUNK_BYTES):  # what is there, without waiting for more
            chunks.append(chunk)
            if time.monotonic() > until:
                response.close()
                raise Unavailable("the API server was too slow in sending its answer")
        return b"".join(chunks)
    finally:
        response.release_conn()


def _success(answer: Answer) -> Answer:
    """The answer, if it is a success; else the error that it means, with the server's own words."""
    if 200 <= answer.status < 300:
        return answer
    try:
        said = answer.json()
    except Unavailable:
        said = {}
    message = str(
        said.get("message") or answer.body[:200].decode(errors="replace") or f"HTTP {answer.status}"
    )
    if answer.status == 409:
        raise Conflict(message)
    if 400 <= answer.status < 500 and answer.status not in _PASSING:
        raise Refused(str(said.get("reason") or _REASONS.get(answer.status, "Refused")), message)
    raise Unavailable(f"the API server answered {answer.status}: {message}")


_REASONS = {400: "BadRequest", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 422: "Invalid"}


def _with_query(path: str, query: Mapping[str, str]) -> str:
    return f"{path}{'&' if '?' in path else '?'}{urlencode(query)}"
