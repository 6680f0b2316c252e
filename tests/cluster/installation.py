"""Our chart on a real cluster, as the tests install it, and a look into its membership service from outside.

Whoever has the machines (the test cluster) can also reach the network of the pods; on somebody else's cluster what
needs that is not run. Used by the cluster's scenarios, the demo and the benchmark.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.harness import Cluster, HarnessError, layout, network

from trainingrun.cluster.kubernetes.api import Api
from trainingrun.ports import Refused, Unavailable
from trainingrun.protocol import wire
from trainingrun.protocol.messages import RunView
from trainingrun.protocol.names import TOKEN_AUDIENCE

RELEASE = "trainingrun"
NAMESPACE = "trainingrun-system"
CONTROLLER, MEMBERSHIP = f"{RELEASE}-controller", f"{RELEASE}-membership"
CHART = Path(__file__).resolve().parents[2] / "helm" / "trainingrun"
PORT = 8443
READY_SECONDS = 90


@dataclass
class Installation:
    """The release in its namespace. `node`: where the operator's pods run while that node is there; "" for anywhere."""

    cluster: Cluster
    api: Api
    node: str = ""
    _address: str = ""
    _token: str = ""
    _context: ssl.SSLContext | None = field(default=None, repr=False)

    def install(self, values: Mapping[str, Any] | None = None) -> None:
        """Install or upgrade, and wait until both programs are ready. Raises HarnessError."""
        chosen = {
            "image": {"repository": "localhost/trainingrun-operator", "tag": "test", "pullPolicy": "Never"},
            "trainer": {
                "image": {"repository": "localhost/trainingrun-trainer", "tag": "test", "pullPolicy": "Never"}
            },
            **(values or {}),
        }
        if self.node:
            near = {"affinity": prefers(self.node)}
            chosen |= {name: {**near, **chosen.get(name, {})} for name in ("controller", "membership")}
        self.helm(
            *("upgrade", "--install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--create-namespace"),
            # The definition may be there already, from a test of its own.
            *("--wait", "--timeout", f"{READY_SECONDS}s", "--take-ownership", "--force-conflicts"),
            *("--values", "-"),
            given=json.dumps(chosen),
        )

    def uninstall(self) -> None:
        self.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait", "--ignore-not-found")

    def helm(self, *words: str, given: str = "") -> str:
        return self.cluster.command(
            str(self.cluster.helm_path), *words, timeout_seconds=READY_SECONDS + 60, stdin=given
        )

    # the programs

    def pods(self, deployment: str) -> list[dict[str, Any]]:
        component = deployment.removeprefix(f"{RELEASE}-")
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        return self.api.list(path, f"app.kubernetes.io/component={component}")

    def scale(self, deployment: str, replicas: int) -> None:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{deployment}"
        self.api.patch(f"{path}/scale", {"spec": {"replicas": replicas}})

    def bring_home(self) -> None:
        """Move pods that a fault has driven away back to their node, and wait until both programs are ready there."""
        away = [
            pod
            for program in (CONTROLLER, MEMBERSHIP)
            for pod in self.pods(program)
            if not self._is_home(pod)
        ]
        for pod in away:
            self.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}")
        for program in (CONTROLLER, MEMBERSHIP):
            self.wait_ready(program, self.node)

    def _is_home(self, pod: Mapping[str, Any]) -> bool:
        return not self.node or pod["spec"].get("nodeName") in (None, self.node)

    def signal(self, deployment: str, number: signal.Signals) -> None:
        """To the program's first process in each of its pods."""
        for pod in self.pods(deployment):
            self.cluster.kill_in_pod(NAMESPACE, pod["metadata"]["name"], "pid=1", number)

    def kill(self, deployment: str) -> None:
        """SIGKILL, and nobody starts it again before it is scaled up."""
        self.scale(deployment, 0)
        for pod in self.pods(deployment):
            with suppress(HarnessError):  # it may have ended at once
                self.cluster.kill_in_pod(NAMESPACE, pod["metadata"]["name"], "pid=1")
        deadline = time.monotonic() + READY_SECONDS
        while self.pods(deployment):
            if time.monotonic() > deadline:
                raise AssertionError(f"{deployment} does not go:\n{self.logs()}")
            time.sleep(0.1)

    def wait_ready(self, deployment: str, node: str = "", timeout_seconds: float = READY_SECONDS) -> None:
        """Until one of its pods is ready, on that node if one is named."""
        deadline = time.monotonic() + timeout_seconds
        while not any(
            is_ready(pod) and node in ("", pod["spec"].get("nodeName")) for pod in self.pods(deployment)
        ):
            if time.monotonic() > deadline:
                raise AssertionError(f"{deployment} is not ready:\n{self.logs()}")
            time.sleep(0.2)

    def logs(self, tail_lines: int = 60) -> str:
        """The ends of both programs' logs."""
        parts = []
        for pod in [*self.pods(CONTROLLER), *self.pods(MEMBERSHIP)]:
            name = pod["metadata"]["name"]
            path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/log?tailLines={tail_lines}"
            try:
                parts.append(f"--- {name}\n{self.api.text(path)}")
            except (Refused, Unavailable) as error:
                parts.append(f"--- {name}: {error}")
        return "\n".join(parts)

    # membership, asked as the controller does

    def view(self, run_uid: str) -> RunView | None:
        """What membership knows; None when it cannot be asked now or does not know the run."""
        try:
            return self._ask(run_uid)
        except (OSError, http.client.HTTPException, Unavailable, Refused):
            self._address = ""  # perhaps it has moved
            return None

    def _ask(self, run_uid: str) -> RunView | None:
        self._address = self._address or self._find()
        if not self._address:
            return None
        if self._context is None:
            self._context = self._trust()
        host = f"{MEMBERSHIP}.{NAMESPACE}.svc"
        connection = http.client.HTTPSConnection(host, PORT, timeout=2.0, context=self._context)
        with network.inside(
            network.path(layout.CONTROL_PLANE)
        ):  # the control plane's network reaches pods on every node
            plain = socket.create_connection((self._address, PORT), timeout=2.0)
        connection.sock = self._context.wrap_socket(plain, server_hostname=host)
        try:
            connection.request(
                "GET", f"/v1/runs/{run_uid}", headers={"Authorization": f"Bearer {self._token}"}
            )
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if answer.status in (401, 403):
            self._context = None
        return wire.from_json(RunView, json.loads(data)) if answer.status == 200 else None

    def _find(self) -> str:
        ready = [pod for pod in self.pods(MEMBERSHIP) if is_ready(pod)]
        return str(ready[0]["status"]["podIP"]) if ready else ""

    def _trust(self) -> ssl.SSLContext:
        known = self.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{MEMBERSHIP}-ca")
        if known is None:
            raise Unavailable("membership has not made its CA yet")
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{CONTROLLER}/token"
        wanted = {"spec": {"audiences": [TOKEN_AUDIENCE], "expirationSeconds": 7200}}
        self._token = str(self.api.create(path, wanted)["status"]["token"])
        return ssl.create_default_context(cadata=known["data"]["ca.crt"])


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def prefers(node: str) -> dict[str, Any]:
    """An affinity: this node while it is there, else any."""
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    wanted = [{"weight": 100, "preference": here}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wanted}}
