"""The line on the test cluster: real pods of our chart's operator, in a Kubernetes namespace of their own.

The faults are those of the machines (a process killed, a node's power cut); what a test looks at is read as the
operator reads it. Tests that know that they are on a cluster find more here than `Line` promises.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cluster.harness import Cluster
from tests.cluster.installation import CONTROLLER, MEMBERSHIP, Installation
from tests.cluster.witness import Witness, seconds
from tests.scenarios.line import Line, Moment
from tests.scenarios.pod_files import PodFiles

from trainingrun.api.constants import API_VERSION, GROUP, PLURAL, VERSION, Label
from trainingrun.cluster.kubernetes.adapter import KubePort
from trainingrun.cluster.local import processes
from trainingrun.cluster.local.processes import Process
from trainingrun.ports import EventRecord, Node, Pod, Refused, Unavailable
from trainingrun.protocol.messages import RunView
from trainingrun.protocol.records import Revision

WORKER = "trainingrun-test/worker"  # label of the nodes that a line's pods may use
CLAIM = "shared"
_RANK_LOG = re.compile(r"epoch-(\d+)\.rank-(\d+)\.log$")
_GONE_SECONDS = 90.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class ClusterLines:
    """Implements lines.Lines. `workers`: nodes that lines may use, in this order; the operator's own is the last."""

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
        self.witness = Witness()
        self._run = self._uid = ""
        self._kept = PodFiles(self.cluster, self.api, self.namespace, state, self.witness.saw)

    def __enter__(self) -> Self:
        self.cluster.heal_all()
        for node in self.cluster.nodes:
            self._mark(node, node in self.workers)
        make_namespace(self.api, self.namespace, self.cluster.shared_dir)
        self._kept.start()
        for program in (CONTROLLER, MEMBERSHIP):
            self.operator.scale(program, 1)
        self.operator.bring_home()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cluster.heal_all()
        self._kept.close()
        if self._run and (kind is None or not os.environ.get("TRAININGRUN_KEEP_FAILED")):
            self.api.delete(f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURAL}/{self._run}")
        for program in (CONTROLLER, MEMBERSHIP):
            self.operator.scale(program, 1)

    def apply(self, manifest: Mapping[str, Any]) -> str:
        placed = with_node_selector(manifest)
        placed["metadata"] = {**manifest["metadata"], "namespace": self.namespace}
        self._run = manifest["metadata"]["name"]
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{self.namespace}/{PLURAL}/{self._run}"
        self._uid = self.witness.run_uid = self.api.apply(path, placed, "scenario")["metadata"]["uid"]
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

    def view(self) -> RunView | None:
        """What membership knows, asked without the API server once it was asked before."""
        return self.operator.view(self._uid)

    def revisions(self) -> Sequence[Revision]:
        return self.port.revisions(self._uid)

    def events(self) -> Sequence[EventRecord]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        found = [item for item in self.api.list(path) if item["regarding"].get("kind") == "TrainingRun"]
        records = [
            EventRecord(_told_at(item), item.get("type", ""), item.get("reason", ""), item.get("note", ""))
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
        return sorted(self._kept.folder("logs").glob(f"*/{pattern}"))

    def newest_step(self) -> int:
        """As the ranks log it, whatever the operator knows. The last line of a log may be in the making."""
        logs = [path.read_text() for path in self.files("metrics-e*.jsonl")]
        rows = [
            json.loads(row) for text in logs for row in text.splitlines(keepends=True) if row.endswith("\n")
        ]
        return max((row["step"] for row in rows if "loss" in row), default=0)

    def cache_dir(self) -> Path:
        return next(self._kept.folder("cache").iterdir())

    def objections(self) -> Sequence[str]:
        return self.witness.objections()

    def leaks(self) -> Sequence[str]:
        """Everything of a deleted run goes with it; the empty namespace may take its time."""
        deadline = time.monotonic() + _GONE_SECONDS
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.3)
        self.api.delete(f"/api/v1/namespaces/{self.namespace}")
        return left

    def _left(self) -> list[str]:
        kinds = (("api/v1", "pods"), ("api/v1", "configmaps"), ("apis/apps/v1", "controllerrevisions"))
        paths = {kind: f"/{group}/namespaces/{self.namespace}/{kind}" for group, kind in kinds}
        return [
            f"{kind} {item['metadata']['name']}"
            for kind, path in paths.items()
            for item in self.api.list(path, Label.RUN_UID.value)
        ]

    # nodes

    def offer(self, node: str) -> None:
        """From now on the run's pods may use this node too."""
        self._mark(node, True)

    def withdraw(self, node: str) -> None:
        """No new pod of the run may use this node. One that is there stays."""
        self._mark(node, False)

    def _mark(self, node: str, is_worker: bool) -> None:
        labels = {WORKER: "yes" if is_worker else None}
        self.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})

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

    def delete_pods(self, *slots: int) -> None:
        """As a user does, and without waiting for them to go."""
        names = [self.pod_of(slot).name for slot in slots]
        self.cluster.kubectl("-n", self.namespace, "delete", "pod", *names, "--wait=false")

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
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    size = {"storage": "1Gi"}
    volume = {
        "metadata": {"name": f"{CLAIM}-{name}"},
        "spec": {
            **common,
            "capacity": size,
            "hostPath": {"path": str(shared)},
            "claimRef": {"namespace": name, "name": CLAIM},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    claim = {
        "metadata": {"name": CLAIM},
        "spec": {**common, "resources": {"requests": size}, "volumeName": volume["metadata"]["name"]},
    }
    api.create("/api/v1/persistentvolumes", volume)
    api.create(f"/api/v1/namespaces/{name}/persistentvolumeclaims", claim)
    _bind(api, f"/api/v1/namespaces/{name}/persistentvolumeclaims/{CLAIM}")


def _bind(api: Any, claim: str) -> None:
    """Wait until it is bound. The controller looks again only after 15 s when somebody else wrote at the same time,
    as the one that protects claims in use often does; any change of the claim makes it look at once."""
    deadline = time.monotonic() + _GONE_SECONDS
    for look in itertools.count():
        time.sleep(0.2)
        found = api.get(claim) or {}
        if (found.get("status") or {}).get("phase") == "Bound":
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"the claim is not bound: {found}")
        api.patch(claim, {"metadata": {"annotations": {"trainingrun-test/look": str(look)}}})


def with_node_selector(manifest: Mapping[str, Any]) -> dict[str, Any]:
    template = dict(manifest["spec"].get("podTemplate") or {})
    template["spec"] = {**(template.get("spec") or {}), "nodeSelector": {WORKER: "yes"}}
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRun",
        "metadata": manifest["metadata"],
        "spec": {**manifest["spec"], "podTemplate": template},
    }


def _told_at(event: Mapping[str, Any]) -> float:
    return seconds(event.get("eventTime") or event["metadata"]["creationTimestamp"])
