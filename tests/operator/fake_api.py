"""An API server in memory behind real HTTP, for tests of the adapter and its watch.

It stores plain objects by path and knows what the adapter relies on: uids, resource versions, 409, selectors, paging,
watches, preconditions of a deletion. It can refuse, be away, or stop telling watchers anything.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]
KINDS = {
    ("", "v1"): {"pods": "Pod", "configmaps": "ConfigMap", "persistentvolumeclaims": "PersistentVolumeClaim",
                 "nodes": "Node", "namespaces": "Namespace"},
    ("apps", "v1"): {"controllerrevisions": "ControllerRevision"},
    ("events.k8s.io", "v1"): {"events": "Event"},
    ("trainingrun.dev", "v1alpha1"): {"trainingruns": "TrainingRun"},
    ("apiextensions.k8s.io", "v1"): {"customresourcedefinitions": "CustomResourceDefinition"},
}  # fmt: skip
CLUSTER_WIDE = ("nodes", "namespaces", "customresourcedefinitions")
_PATH = re.compile(
    r"(?P<root>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<space>[^/]+)(?=/))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status))?$"
)
_REASONS = {404: "NotFound", 409: "AlreadyExists", 403: "Forbidden", 422: "Invalid"}


class Answered(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or _REASONS.get(status, "InternalError")


class FakeApiServer:
    """`with FakeApiServer() as server: Api.at(server.url)`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.objects: dict[tuple[str, str, str], Object] = {}  # (plural, namespace, name)
        self.history: list[tuple[int, str, str, Object]] = []  # (version, type, plural, object)
        self.requests: list[tuple[str, str]] = []  # (method, path with query)
        self.refusals: dict[tuple[str, str], Answered] = {}  # (method, plural) -> what is answered instead
        self.forbidden: set[tuple[str, str]] = set()  # (verb, resource) of access reviews
        self.away = False  # connections end without an answer
        self.deaf_watches = False  # watches stay open, but tell nothing
        self.stream_error = 0  # the next watch is told an ERROR of this code: 410 Gone, 500
        self.graceful = False  # deleted pods stay, with a deletionTimestamp
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        fake = self

        class Handler(_Handler):
            server_state = fake

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.stopping = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> FakeApiServer:
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping = True
        with self.changed:
            self.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()

    # what tests do to the world

    def put(self, plural: str, item: Mapping[str, Any]) -> Object:
        """Create or replace an object, as somebody else would."""
        with self.changed:
            return self._store(plural, copy.deepcopy(dict(item)))

    def get(self, plural: str, namespace: str, name: str) -> Object | None:
        return self.objects.get((plural, namespace, name))

    def names(self, plural: str) -> list[str]:
        return sorted(name for kind, _, name in self.objects if kind == plural)

    def remove(self, plural: str, namespace: str, name: str) -> None:
        with self.changed:
            item = self.objects.pop((plural, namespace, name))
            self._happened("DELETED", plural, item)

    def asked(self, method: str, plural: str) -> int:
        """How often a request of this kind came."""
        return sum(1 for verb, path in self.requests if verb == method and f"/{plural}" in path)

    # the API

    def call(self, method: str, url: str, body: Any, content_type: str) -> Object:
        parts = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path.endswith("selfsubjectaccessreviews"):
            return self._review(body)
        if method == "GET" and (found := _discovery(parts.path)) is not None:
            return found
        match = _PATH.match(parts.path)
        if match is None:
            raise Answered(404, "the server could not find the requested resource")
        plural, space, name = match["plural"], match["space"] or "", match["name"] or ""
        refusal = self.refusals.get((method, plural))
        if refusal is not None:
            raise refusal
        with self.changed:
            if method == "GET" and not name:
                return self._list(plural, space, query)
            if method == "POST":
                name = body["metadata"]["name"]
                if (plural, space, name) in self.objects:
                    raise Answered(409, f'{plural} "{name}" already exists')
                body["metadata"].setdefault("namespace", space)
                return self._store(plural, body)
            item = self.objects.get((plural, space, name))
            if item is None and content_type.startswith("application/apply-patch"):
                return self._store(plural, {**body, "metadata": {**body["metadata"], "namespace": space}})
            if item is None:
                raise Answered(404, f'{plural} "{name}" not found')
            return self._change(method, plural, item, body, match["sub"] or "")

    def _change(self, method: str, plural: str, item: Object, body: Any, sub: str) -> Object:
        if method == "GET":
            return item
        if method == "DELETE":
            wanted = ((body or {}).get("preconditions") or {}).get("uid")
            if wanted not in (None, item["metadata"]["uid"]):
                raise Answered(409, "the UID in the precondition does not match", "Conflict")
            if self.graceful and plural == "pods":
                item["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
                return self._store(plural, item)
            key = (plural, item["metadata"].get("namespace", ""), item["metadata"]["name"])
            self._happened("DELETED", plural, self.objects.pop(key))
            return {"kind": "Status", "status": "Success"}
        if method == "PUT":
            if body["metadata"].get("resourceVersion") != item["metadata"]["resourceVersion"]:
                raise Answered(409, "the object has been modified", "Conflict")
            return self._store(plural, {**item, "status": body["status"]} if sub == "status" else body)
        return self._store(plural, _merge(item, body))

    def _store(self, plural: str, item: Object) -> Object:
        about = item["metadata"]
        key = (plural, about.get("namespace", ""), about["name"])
        known = self.objects.get(key)
        about["uid"] = known["metadata"]["uid"] if known else about.get("uid") or f"uid-{next(self._uids)}"
        about.setdefault("creationTimestamp", "2026-11-30T00:00:00Z")
        if known is None or known.get("spec") != item.get("spec"):
            about["generation"] = (known["metadata"].get("generation", 0) if known else 0) + 1
        stored = copy.deepcopy(item)
        self.objects[key] = stored
        return self._happened("MODIFIED" if known else "ADDED", plural, stored)

    def _happened(self, kind: str, plural: str, item: Object) -> Object:
        version = next(self._versions)
        item["metadata"]["resourceVersion"] = str(version)
        self.history.append((version, kind, plural, copy.deepcopy(item)))
        self.changed.notify_all()
        return item

    def _list(self, plural: str, space: str, query: Mapping[str, str]) -> Object:
        items = [
            item for key, item in sorted(self.objects.items()) if key[0] == plural and space in ("", key[1])
        ]
        items = [item for item in items if _selected(item, query.get("labelSelector", ""))]
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 10_000))
        rest = str(start + limit) if len(items) > start + limit else ""
        version = self.history[-1][0] if self.history else 1
        about = {"resourceVersion": str(version), "continue": rest}
        return {"kind": "List", "metadata": about, "items": copy.deepcopy(items[start : start + limit])}

    def _review(self, body: Any) -> Object:
        wanted = body["spec"]["resourceAttributes"]
        resource = "/".join(part for part in (wanted["resource"], wanted.get("subresource", "")) if part)
        return {"status": {"allowed": (wanted["verb"], resource) not in self.forbidden}}

    def watch(self, url: str, write: Any) -> None:
        """Tell what happens to a collection, until the server stops."""
        parts = urlsplit(url)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        match = _PATH.match(parts.path)
        assert match is not None
        told = int(query.get("resourceVersion", 0))
        while not self.stopping and not self.away:
            with self.changed:
                fresh = [event for event in self.history if event[0] > told]
                if self.deaf_watches or not (fresh or self.stream_error):
                    self.changed.wait(0.1)
                    continue
                if self.stream_error:
                    code, self.stream_error = self.stream_error, 0
                    write({"type": "ERROR", "object": {"kind": "Status", "code": code, "reason": "Expired"}})
                    return
            for version, kind, plural, item in fresh:
                told = version
                inside = not match["space"] or item["metadata"].get("namespace") == match["space"]
                if plural == match["plural"] and inside and _selected(item, query.get("labelSelector", "")):
                    write({"type": kind, "object": item})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # one packet for head and body
    server_state: FakeApiServer

    def answer(self) -> None:
        state = self.server_state
        if state.away:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        state.requests.append((self.command, self.path))
        if self.command == "GET" and "watch=true" in self.path:
            self._watch()
            return
        try:
            content_type = self.headers.get("Content-Type", "")
            answer = state.call(self.command, self.path, json.loads(body) if body else None, content_type)
            status = 201 if self.command == "POST" else 200
        except Answered as error:
            status = error.status
            answer = {"kind": "Status", "code": status, "reason": error.reason, "message": str(error)}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True

        def write(event: Object) -> None:
            self.wfile.write(json.dumps(event).encode() + b"\n")
            self.wfile.flush()

        try:
            self.server_state.watch(self.path, write)
        except OSError:
            return

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        """Tests look at `requests`."""


def _discovery(path: str) -> Object | None:
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        named = [(group, version) for group, version in KINDS if group]
        return {
            "groups": [
                {"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}}
                for group, version in named
            ]
        }
    match = re.fullmatch(r"/api/(v1)|/apis/([^/]+)/([^/]+)", path)
    if match is None:
        return None
    kinds = KINDS.get((match[2] or "", match[1] or match[3]), {})
    verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
    return {
        "resources": [
            {
                "name": plural,
                "singularName": kind.lower(),
                "kind": kind,
                "namespaced": plural not in CLUSTER_WIDE,
                "verbs": verbs,
            }
            for plural, kind in kinds.items()
        ]
    }


def _selected(item: Object, selector: str) -> bool:
    labels = item["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        key, equals, value = part.partition("=")
        if (labels.get(key) != value) if equals else (key not in labels):
            return False
    return True


def _merge(item: Any, patch: Any) -> Any:
    if not isinstance(item, dict) or not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = {**item, **{key: _merge(item.get(key), value) for key, value in patch.items()}}
    return {key: value for key, value in merged.items() if value is not None}
