"""Kubernetes namespaces with runs that a test looks at from outside, and what was seen of them and since when.

A `Space` looks at its runs and pods all the time, so that several things can happen at once and each is known with its
time. `Health` tells whether the operator got over all of it. Used by the tests of obstacles and of bad input.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from tests.cluster.installation import CONTROLLER, MEMBERSHIP, NAMESPACE, Installation
from tests.scenarios.cluster_line import ClusterLines, make_namespace

from trainingrun.api.constants import API_VERSION, GROUP, KIND, PLURAL, VERSION, Label
from trainingrun.ports import Refused, Unavailable

T = TypeVar("T")
LOOK_SECONDS = 0.2
SMALL = {
    "cpu": "250m",
    "memory": "2Gi",
}  # what a worker of the tests' model needs: many runs fit on the nodes


@dataclass(frozen=True)
class Told:
    """A condition with this reason. `at`: when it was seen first, in monotonic seconds; the message is the newest."""

    at: float
    message: str


@dataclass
class Space:
    """One namespace. What is in `pods` stays there when the pod is gone."""

    operator: ClusterLines
    namespace: str
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)  # by uid, as seen last
    told: dict[tuple[str, str, str], Told] = field(default_factory=dict)  # by run, condition=status, reason
    waiting: dict[tuple[str, str], float] = field(default_factory=dict)  # by run, reason of a container

    def path(self, kind: str, name: str = "") -> str:
        group = f"/apis/{GROUP}/{VERSION}" if kind == PLURAL else "/api/v1"
        return f"{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def create(self, kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self.operator.installation.api.create(self.path(kind), body)

    def apply(self, manifest: Mapping[str, Any]) -> Run:
        name = manifest["metadata"]["name"]
        body = {"apiVersion": API_VERSION, "kind": KIND, **manifest}
        body["metadata"] = {"name": name, "namespace": self.namespace}
        made = self.operator.installation.api.apply(self.path(PLURAL, name), body, "test")
        return Run(self, name, made["metadata"]["uid"], time.monotonic())

    def look(self) -> None:
        api = self.operator.installation.api
        with suppress(Unavailable):
            runs, pods = api.list(self.path(PLURAL)), api.list(self.path("pods"))
            now = time.monotonic()
            for run in runs:
                for one in (run.get("status") or {}).get("conditions") or []:
                    key = run["metadata"]["name"], f"{one['type']}={one['status']}", one["reason"]
                    first = self.told.get(key)
                    self.told[key] = Told(first.at if first else now, one.get("message", ""))
            for pod in pods:
                self.pods[pod["metadata"]["uid"]] = pod
                for container in (pod.get("status") or {}).get("containerStatuses") or []:
                    reason = (container["state"].get("waiting") or {}).get("reason", "")
                    labels = pod["metadata"].get("labels") or {}
                    self.waiting.setdefault((labels.get(Label.RUN_NAME, ""), reason), now)

    def until(self, condition: Callable[[], T | None], what: str, timeout_seconds: float = 60.0) -> T:
        """The first true value of `condition`. Fails with what was seen, and with the operator's logs."""
        deadline = time.monotonic() + timeout_seconds
        while not (value := condition()):
            if time.monotonic() > deadline:
                seen = "\n".join(f"{key}: {told}" for key, told in self.told.items())
                logs = self.operator.installation.logs()
                raise AssertionError(f"not within {timeout_seconds:g} s: {what}\nseen:\n{seen}\n{logs}")
            time.sleep(LOOK_SECONDS)
        return value


@dataclass(frozen=True)
class Run:
    """A run in a space. `applied_at` in monotonic seconds."""

    space: Space
    name: str
    uid: str
    applied_at: float

    @property
    def pods(self) -> list[dict[str, Any]]:
        """All that were ever seen, in the order of their creation."""
        mine = [pod for pod in self.space.pods.values() if self._owns(pod)]
        return sorted(mine, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    @property
    def status(self) -> Mapping[str, Any]:
        api = self.space.operator.installation.api
        return (api.get(self.space.path(PLURAL, self.name)) or {}).get("status") or {}

    def says(self, condition: str, reason: str, timeout_seconds: float = 60.0) -> Told:
        """Wait for a condition, such as `Stalled=True` or `Ready=False`, with that reason."""
        key = self.name, condition, reason
        return self.space.until(
            lambda: self.space.told.get(key), f"{self.name}: {condition}, {reason}", timeout_seconds
        )

    def container_waits(self, *reasons: str, timeout_seconds: float = 60.0) -> float:
        """When a container of the run was first seen to wait for one of these reasons, as the kubelet calls them."""
        seen = self.space.waiting

        def first() -> float | None:
            return min((seen[self.name, word] for word in reasons if (self.name, word) in seen), default=None)

        return self.space.until(first, f"{self.name}: a container that waits: {reasons}", timeout_seconds)

    def _owns(self, pod: Mapping[str, Any]) -> bool:
        return any(owner["uid"] == self.uid for owner in pod["metadata"].get("ownerReferences") or [])


@contextmanager
def a_space(operator: ClusterLines) -> Iterator[Space]:
    """A namespace at the restricted Pod Security level, with the tests' claim; deleted at the end, not waited for."""
    api = operator.installation.api
    space = Space(operator, f"test-{uuid.uuid4().hex[:8]}")
    make_namespace(api, space.namespace, operator.cluster.shared_dir)
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(LOOK_SECONDS):
            space.look()

    watching = threading.Thread(target=watch, name=f"watch {space.namespace}", daemon=True)
    watching.start()
    try:
        space.until(lambda: api.get(space.path("serviceaccounts", "default")), "the default service account")
        yield space
    finally:
        stop.set()
        watching.join()
        api.delete(f"/api/v1/namespaces/{space.namespace}")


class Health:
    """The operator, compared with what it was when this was made."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._pods = self._programs()
        self._counted = self._count()

    def check(self, restarted: bool = False) -> None:
        """The same pods, never restarted (unless the test has scaled them), and no traceback in their logs."""
        pods = self._programs()
        assert restarted or pods == self._pods
        assert all(restarts == 0 for _, restarts in pods) or pods == self._pods
        logs = self.log()
        assert "Traceback" not in logs, logs

    def log(self) -> str:
        """What both programs have logged since."""
        found = []
        for pod in [*self._installation.pods(CONTROLLER), *self._installation.pods(MEMBERSHIP)]:
            path = (
                f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}/log?sinceTime={self._since}"
            )
            with suppress(Refused):
                found.append(self._installation.api.text(path))
        return "\n".join(found)

    def refused(self, resource: str) -> int:
        """How many creations of these objects the API server has refused since, by anybody."""
        return self._count().get(resource, 0) - self._counted.get(resource, 0)

    def _programs(self) -> list[tuple[str, int]]:
        pods = [*self._installation.pods(CONTROLLER), *self._installation.pods(MEMBERSHIP)]
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return [
            (pod["metadata"]["uid"], sum(one["restartCount"] for one in pod["status"]["containerStatuses"]))
            for pod in alive
        ]

    def _count(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for line in self._installation.api.text("/metrics").splitlines():
            if not line.startswith("apiserver_request_total{"):
                continue
            labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
            if labels["verb"] == "POST" and labels["code"] in ("400", "403", "404", "422"):
                resource = labels["resource"]
                counts[resource] = counts.get(resource, 0) + int(float(line.rpartition(" ")[2]))
        return counts
