"""The line on the test cluster: real pods of our chart's operator, in a Kubernetes namespace of their own.

The faults are those of the machines (a process killed, a node's power cut); what a test looks at is read as the
operator reads it. What the ranks log is opened as soon as it appears, because a pod takes its files along when it goes.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from tests.cluster.harness import Cluster
from tests.cluster.installation import CONTROLLER, MEMBERSHIP, Installation
from tests.scenarios.line import Line, Moment

from trainingrun.api.constants import API_VERSION, GROUP, PLURAL, VERSION, Label
from trainingrun.cluster.kubernetes.adapter import KubePort
from trainingrun.cluster.local import processes
from trainingrun.cluster.local.processes import Process
from trainingrun.ports import EventRecord, Node, Pod, Refused, Unavailable
from trainingrun.protocol.records import Revision

WORKER = "trainingrun-test/worker"  # label of the nodes that a line's pods may use
CLAIM = "shared"
_RANK_LOG = re.compile(r"epoch-(\d+)\.rank-(\d+)\.log$")
_COLLECT_SECONDS = 0.2
_GONE_SECONDS = 90.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class ClusterLines:
    """Implements lines.Lines. `workers`: nodes that lines may use, in this order."""

    cluster: Cluster
    installation: Installation
    port: KubePort
    workers: tuple[str, ...]

    def open(self, nodes: int, state: Path | None) -> Line:
        if state is None:
            state = self.cluster.shared_dir / f"line-{os.getpid()}-{next(_numbers)}"
        return ClusterLine(self, self.workers[:nodes], state)

    def uri_of(self, path: Path) -> str:
        return f"pvc://{CLAIM}/{path.relative_to(self.cluster.shared_dir)}"


class ClusterLine(Line):
    look_seconds = 0.2

    def __init__(self, lines: ClusterLines, workers: Sequence[str], state: Path) -> None:
        self.cluster, self.operator, self.port = lines.cluster, lines.installation, lines.port
        self.api = lines.installation.api
        self.workers = tuple(workers)
        self.namespace = f"scenario-{os.getpid()}-{next(_numbers)}"
        self._state = state
        self._run = self._uid = ""
        self._uids: set[str] = set()  # of pods of this namespace, those that are gone included
        self._opened: dict[Path, BinaryIO] = {}  # by where a copy of it goes
        self._stop = threading.Event()
        self._collecting = threading.Lock()
        self._collector = threading.Thread(target=self._collect, name="collector", daemon=True)

    def __enter__(self) -> Self:
        for folder in (self._state / "logs", self._state / "cache"):
            folder.mkdir(parents=True, exist_ok=True)
        self.cluster.heal_all()
        for node in self.cluster.nodes:
            chosen = "yes" if node in self.workers else None
            self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {WORKER: chosen}}})
        make_namespace(self.api, self.namespace, self.cluster.shared_dir)
        self._collector.start()
        for program in (CONTROLLER, MEMBERSHIP):
            self.operator.scale(program, 1)
            self.operator.wait_ready(program)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.heal_all()
        self._stop.set()
        self._collector.join()
        for file in self._opened.values():
            file.close()
        if kind is None or not os.environ.get("TRAININGRUN_KEEP_FAILED"):
            self.api.delete(f"/api/v1/namespaces/{self.namespace}")
        for program in (CONTROLLER, MEMBERSHIP):
            self.operator.scale(program, 1)

    def apply(self, manifest: Mapping[str, Any]) -> str:
        placed = with_node_selector(manifest)
        placed["metadata"] = {**manifest["metadata"], "namespace": self.namespace}
        self._run = manifest["metadata"]["name"]
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURAL}/{self._run}"
        self._uid = self.api.apply(path, placed, "scenario")["metadata"]["uid"]
        return self._uid

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self._run}"

    # what can be seen

    def moment(self) -> Moment:
        while True:
            try:
                run = self.port.get_run(self.key)
                return Moment(
                    view=self.operator.view(self._uid),
                    status=run.status if run is not None else {},
                    pods=self.port.pods(self.key) if run is not None else [],
                    epochs=self.port.epochs(self._uid),
                )
            except Unavailable:
                time.sleep(self.look_seconds)

    def revisions(self) -> Sequence[Revision]:
        return self.port.revisions(self._uid)

    def events(self) -> Sequence[EventRecord]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        found = [item for item in self.api.list(path) if item["regarding"].get("kind") == "TrainingRun"]
        records = [
            EventRecord(_seconds(item), item.get("type", ""), item.get("reason", ""), item.get("note", ""))
            for item in found
        ]
        return sorted(records, key=lambda event: event.at)

    def nodes(self) -> Sequence[Node]:
        return [node for node in self.port.nodes() if node.name in self.workers]

    def node_of(self, slot: int) -> str:
        node = self.pod_of(slot).node
        if not node:
            raise LookupError(f"no node holds slot {slot}")
        return node

    def pod_of(self, slot: int) -> Pod:
        """The newest pod of the seat that is not being deleted."""
        pods = [pod for pod in self.port.pods(self.key) if pod.slot == slot and not pod.terminating]
        if not pods:
            raise LookupError(f"no pod has slot {slot}")
        return max(pods, key=lambda pod: pod.incarnation)

    def ranks(self, slot: int) -> Mapping[int, Process]:
        found: list[tuple[int, int, Process]] = []
        for each in self.cluster.processes(self.namespace, self.pod_of(slot).name):
            try:
                match = _RANK_LOG.search(str(Path(f"/proc/{each.pid}/fd/1").readlink()))
            except OSError:
                continue
            process = processes.find(each.pid)
            if match and process is not None:
                found.append((int(match[1]), int(match[2]), process))
        newest = max((epoch for epoch, _, _ in found), default=0)
        current = sorted((rank, process) for epoch, rank, process in found if epoch == newest)
        if not current:
            return {}
        first = current[0][0] - current[0][0] % self._processes_per_node()
        return {rank - first: process for rank, process in current}

    def _processes_per_node(self) -> int:
        return self.revisions()[-1].rungs[-1].processes_per_node

    def logs(self) -> str:
        parts = [self.operator.logs()]
        for name in sorted(self._pod_names()):
            for suffix in ("", "&previous=true"):
                path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/log?tailLines=40{suffix}"
                with suppress(Refused, Unavailable):
                    parts.append(f"--- {name}{suffix}\n{self.api.text(path)}")
        return "\n".join(parts)

    def _pod_names(self) -> list[str]:
        return [pod["metadata"]["name"] for pod in self.api.list(f"/api/v1/namespaces/{self.namespace}/pods")]

    def files(self, pattern: str) -> Sequence[Path]:
        self._copy_all()
        return sorted((self._state / "logs").glob(f"*/{pattern}"))

    def cache_dir(self) -> Path:
        self._copy_all()
        return next((self._state / "cache").iterdir())

    def leaks(self) -> Sequence[str]:
        deadline = time.monotonic() + _GONE_SECONDS
        while time.monotonic() < deadline:
            if self.api.get(f"/api/v1/namespaces/{self.namespace}") is None:
                return []
            time.sleep(0.3)
        return [f"namespace {self.namespace} is still there, with pods {self._pod_names()}"]

    # what the pods write, kept

    def _collect(self) -> None:
        while not self._stop.wait(_COLLECT_SECONDS):
            self._open_all()

    def _open_all(self) -> None:
        with suppress(Unavailable):
            for pod in self.api.list(f"/api/v1/namespaces/{self.namespace}/pods", Label.RUN_UID.value):
                self._uids.add(pod["metadata"]["uid"])
        with self._collecting:
            for uid in sorted(self._uids):
                for kind, source in self._volumes(uid):
                    self._open_tree(source, self._state / kind / uid)

    def _open_tree(self, source: Path, target: Path) -> None:
        """An open file outlives its name. No link would do: the kubelet's folder is a mount of its own."""
        for path in source.rglob("*"):
            copy = target / path.relative_to(source)
            if copy in self._opened or path.is_symlink() or not path.is_file():
                continue
            with suppress(FileNotFoundError):
                self._opened[copy] = path.open("rb")

    def _copy_all(self) -> None:
        self._open_all()
        with self._collecting:
            for copy, file in self._opened.items():
                copy.parent.mkdir(parents=True, exist_ok=True)
                file.seek(0)
                copy.write_bytes(file.read())

    def _volumes(self, uid: str) -> Iterator[tuple[str, Path]]:
        for node in self.cluster.layout.nodes:
            volumes = node.folder / "kubelet" / "pods" / uid / "volumes" / "kubernetes.io~empty-dir"
            for kind in ("logs", "cache"):
                yield from ((kind, folder) for folder in volumes.glob(f"*{kind}"))

    # faults

    def kill_rank(self, slot: int, local_rank: int) -> None:
        process = self.ranks(slot).get(local_rank)
        if process is None or not processes.send(process, signal.SIGKILL):
            raise LookupError(f"slot {slot}: no rank {local_rank} runs")

    def kill_agent(self, slot: int) -> None:
        self.cluster.kill_in_pod(self.namespace, self.pod_of(slot).name, "pid=1")

    def kill_node(self, node: str) -> None:
        self.cluster.power_off(node)

    def start_node(self, node: str) -> None:
        self.cluster.power_on(node)

    def stop_membership(self) -> None:
        self.operator.signal(MEMBERSHIP, signal.SIGSTOP)

    def continue_membership(self) -> None:
        self.operator.signal(MEMBERSHIP, signal.SIGCONT)

    def kill_membership(self) -> None:
        self.operator.kill(MEMBERSHIP)

    def start_membership(self) -> None:
        self.operator.scale(MEMBERSHIP, 1)
        self.operator.wait_ready(MEMBERSHIP)

    def kill_controller(self) -> None:
        self.operator.kill(CONTROLLER)

    def start_controller(self) -> None:
        self.operator.scale(CONTROLLER, 1)


def make_namespace(api: Any, name: str, shared: Path) -> None:
    """A namespace of the restricted Pod Security level, with a claim on the folder that the tests share with pods."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    volume = f"{CLAIM}-{name}"
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "1Gi"}
    reference = {"namespace": name, "name": CLAIM}
    api.create(
        "/api/v1/persistentvolumes",
        {
            "metadata": {"name": volume},
            "spec": {
                **common,
                "capacity": size,
                "hostPath": {"path": str(shared)},
                "claimRef": reference,
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
    )
    api.create(
        f"/api/v1/namespaces/{name}/persistentvolumeclaims",
        {
            "metadata": {"name": CLAIM},
            "spec": {**common, "resources": {"requests": size}, "volumeName": volume},
        },
    )


def with_node_selector(manifest: Mapping[str, Any]) -> dict[str, Any]:
    template = dict(manifest["spec"].get("podTemplate") or {})
    template["spec"] = {**(template.get("spec") or {}), "nodeSelector": {WORKER: "yes"}}
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRun",
        "metadata": manifest["metadata"],
        "spec": {**manifest["spec"], "podTemplate": template},
    }


def _seconds(event: Mapping[str, Any]) -> float:
    text = event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
