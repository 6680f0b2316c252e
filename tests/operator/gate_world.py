"""A stand-in for the API server as the gate and the authority see it: tokens, pods, runs, Secrets, ConfigMaps."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from trainingrun.ports import Conflict, Unavailable
from trainingrun.protocol.names import TOKEN_AUDIENCE, pod_name

RUN, UID, NAMESPACE = "demo", "uid-1", "team"
CONTROLLER = "system:serviceaccount:operator:controller"
POD_NAME, POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"


class FakeServer:
    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.users: dict[str, dict[str, Any]] = {}  # by token
        self.away = False
        self.slow_seconds = 0.0
        self.reviews = 0
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self.add_run()

    # the API client's verbs

    def get(self, path: str) -> dict[str, Any] | None:
        self._reach()
        return self.objects.get(path)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._reach()
        if path.endswith("/tokenreviews"):
            return {**body, "status": self._review(body["spec"])}
        where = f"{path}/{body['metadata']['name']}"
        with self._lock:
            if where in self.objects:
                raise Conflict(where)
            self.objects[where] = dict(body)
        return self.objects[where]

    def apply(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]:
        self._reach()
        self.objects[path] = dict(body)
        return self.objects[path]

    # for tests

    def add_run(self, name: str = RUN, uid: str = UID, namespace: str = NAMESPACE) -> None:
        path = f"/apis/trainingrun.dev/v1alpha1/namespaces/{namespace}/trainingruns/{name}"
        self.objects[path] = {"metadata": {"name": name, "namespace": namespace, "uid": uid}}

    def add_pod(self, slot: int = 0, incarnation: int = 0, **changes: Any) -> dict[str, Any]:
        pod = a_pod(slot, incarnation, **changes)
        metadata = pod["metadata"]
        self.objects[f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"] = pod
        return pod

    def remove_pod(self, name: str) -> None:
        del self.objects[f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"]

    def add_worker(self, slot: int = 0, incarnation: int = 0, seconds: float = 3600.0, **changes: Any) -> str:
        """A pod and its token."""
        return self.token_of(self.add_pod(slot, incarnation, **changes), seconds)

    def token_of(self, pod: Mapping[str, Any], seconds: float = 3600.0, namespace: str = "") -> str:
        metadata = pod["metadata"]
        token = a_token(time.time() + seconds, metadata["uid"])
        user = f"system:serviceaccount:{namespace or metadata['namespace']}:default"
        self.users[token] = {
            "username": user,
            "extra": {POD_NAME: [metadata["name"]], POD_UID: [metadata["uid"]]},
        }
        return token

    def controller_token(self) -> str:
        token = a_token(time.time() + 3600, "controller")
        self.users[token] = {"username": CONTROLLER, "extra": {}}
        return token

    def _reach(self) -> None:
        if self.away:
            raise Unavailable("the API server cannot be reached")

    def _review(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.reviews += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.slow_seconds)
        with self._lock:
            self.at_once -= 1
        user = self.users.get(spec["token"])
        if user is None:
            return {"authenticated": False, "error": "token not known"}
        return {"authenticated": True, "audiences": spec["audiences"], "user": user}


def a_pod(slot: int = 0, incarnation: int = 0, run: str = RUN, **changes: Any) -> dict[str, Any]:
    name = pod_name(run, slot, incarnation)
    owner = {"apiVersion": "trainingrun.dev/v1alpha1", "kind": "TrainingRun", "controller": True}
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"pod-{slot}-{incarnation}",
        "labels": {
            "trainingrun.dev/run-uid": UID,
            "trainingrun.dev/slot": str(slot),
            "trainingrun.dev/incarnation": str(incarnation),
        },
        "ownerReferences": [{**owner, "name": run, "uid": UID}],
    }
    return {"metadata": metadata | changes}


def a_token(expires: float, salt: str = "", audience: Any = (TOKEN_AUDIENCE,), **claims: Any) -> str:
    payload = {"exp": int(expires), "aud": list(audience), "salt": salt, **claims}
    parts = [{"alg": "RS256"}, payload, "signature"]
    return ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
    )
