"""Recovery of torchrun elastic in plain pods on the same cluster, for comparison.

Two Deployments of one pod each: a ReplicaSet replaces a pod that is being deleted at once, which no Job does. The
rendezvous store is a pod of its own behind a Service, on the node that no fault hits, which is kind to torchrun: with
the store in the first worker's pod, losing that pod ends the run. Checkpoints lie on a volume that all nodes share.
Tuned are torchrun's keep-alives and the store of the workers (see torchrun_elastic), and the pods tolerate a lost node
for 5 s only, not for Kubernetes's 300 s. Called by benchmarks.cluster_recovery.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness import Cluster
from tests.cluster.harness.layout import TRAINER_IMAGE
from tests.cluster.pods import CONTAINER_SECURITY
from tests.scenarios.cluster_line import CLAIM, make_namespace

from benchmarks.cluster_faults import (
    DELETED,
    OFF,
    PARTITIONED,
    PID_1,
    RANK,
    Hit,
    Recovery,
    delete_pod,
    kill,
    kill_first_process,
    lose_node,
    time_of,
)
from benchmarks.rows import CAP_SECONDS
from benchmarks.torchrun_elastic import STORE, TUNED, Workload
from trainingrun.cluster.kubernetes.api import Api

NODES = 2
STORE_PORT = 29400
MOUNT = "/mnt/shared"
WORKER = "/opt/trainingrun/src/benchmarks/torchrun_worker.py"
LOST_SECONDS = 5  # tuned: how long a pod tolerates that its node does not answer
SETTLED_STEPS = 40
LOOK_SECONDS = 0.4
FRESH_SECONDS = 2.0


@dataclass(frozen=True)
class Step:
    """One optimizer step of one rank. `started`: when its process began; both are seconds since 1970."""

    started: float
    at: float
    step: int
    world: int


class TorchrunPods:
    def __init__(
        self, cluster: Cluster, api: Api, quiet_node: str, workload: Workload, tuned: bool, folder: Path
    ) -> None:
        self._cluster, self._api, self._quiet_node = cluster, api, quiet_node
        self._workload, self._tuned, self._folder = workload, tuned, folder
        self.namespace = folder.name
        self._full = NODES * workload.processes

    def start(self) -> None:
        """Raises AssertionError when they do not train within the cap."""
        make_namespace(self._api, self.namespace, self._cluster.shared_dir)
        service = {
            "metadata": {"name": "store"},
            "spec": {"selector": {"app": "store"}, "ports": [{"port": STORE_PORT}]},
        }
        self._api.create(f"/api/v1/namespaces/{self.namespace}/services", service)
        self._deploy("store", self._store_pod())
        for number in range(NODES):
            self._deploy(f"node-{number}", self._worker_pod())
        self._settle()

    def suffer(self, fault: str, number: int) -> Recovery:
        """The fault, on workers that have trained steadily for a while. Raises AssertionError when they do not."""
        self._settle()
        at = time_of(self._aim(fault, number))
        found = Recovery(None, None, None)
        while found.full is None and time.time() < at + CAP_SECONDS:
            time.sleep(LOOK_SECONDS)
            found = self._recovery(at)
        return found

    def remove(self) -> None:
        self._cluster.heal_all()
        self._api.delete(f"/api/v1/namespaces/{self.namespace}")
        _wait("the namespace is gone", lambda: self._api.get(f"/api/v1/namespaces/{self.namespace}") is None)
        self._api.delete(f"/api/v1/persistentvolumes/{CLAIM}-{self.namespace}")

    # what the ranks did

    def _steps(self) -> list[Step]:
        found = []
        for path in self._folder.glob("steps-*.jsonl"):
            rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
            found += [Step(rows[0]["started"], row["at"], row["step"], row["world"]) for row in rows[1:]]
        return sorted(found, key=lambda step: step.at)

    def _recovery(self, at: float) -> Recovery:
        """As far as the logs tell by now: torchrun answers every fault with new processes."""
        old = [step for step in self._steps() if step.started <= at]
        new = [step for step in self._steps() if step.started > at]
        if not new:
            return Recovery(None, None, None)
        lost = max(0, max(step.step for step in old) - (new[0].step - 1))
        whole = next((step for step in new if step.world == self._full), None)
        if whole is not None and whole is not new[0]:
            smaller = max((step.step for step in new if step.world < self._full), default=0)
            lost += max(0, smaller - (whole.step - 1))
        return Recovery(new[0].at - at, None if whole is None else whole.at - at, lost)

    def _settle(self) -> None:
        """Every fault taken back, both pods and no other, and the newest process has trained for forty steps."""
        self._cluster.heal_all()

        def steadily() -> bool:
            steps = self._steps()
            newest = max((step.started for step in steps), default=0.0)
            mine = [step for step in steps if step.started == newest and step.world == self._full]
            trained = bool(mine) and mine[-1].step - mine[0].step >= SETTLED_STEPS
            return trained and time.time() - mine[-1].at < FRESH_SECONDS and len(self._pods()) == NODES

        _wait("both pods, training", steadily)

    # the faults

    def _aim(self, fault: str, number: int) -> Hit:
        pods = self._pods()
        pod = pods[number % NODES]
        name = pod["metadata"]["name"]
        match fault:
            case _ if fault == RANK:
                found = self._cluster.processes(self.namespace, name)
                return kill([one.pid for one in found if WORKER in one.command and one.inner_pid != 1][-1])
            case _ if fault == PID_1:
                return kill_first_process(self._cluster, self.namespace, name)
            case _ if fault == DELETED:
                return delete_pod(self._cluster, self.namespace, name)
            case _ if fault in (PARTITIONED, OFF):
                nodes = [pod["spec"]["nodeName"] for pod in pods]
                node = next(node for node in nodes if node != self._quiet_node)
                return lose_node(self._cluster, node, power=fault == OFF)
        raise ValueError(f"{fault!r} is no fault")

    def _pods(self) -> list[dict[str, Any]]:
        """The workers' pods, those that are being deleted included."""
        pods = self._api.list(f"/api/v1/namespaces/{self.namespace}/pods", "app=worker")
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    # what is deployed

    def _deploy(self, name: str, pod: dict[str, Any]) -> None:
        pod["metadata"]["labels"]["deployment"] = name
        body = {
            "metadata": {"name": name},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"deployment": name}}, "template": pod},
        }
        self._api.create(f"/apis/apps/v1/namespaces/{self.namespace}/deployments", body)

    def _store_pod(self) -> dict[str, Any]:
        pod = self._pod("store", ["python", "-c", STORE, str(STORE_PORT)])
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": self._quiet_node}
        return pod

    def _worker_pod(self) -> dict[str, Any]:
        work = self._workload
        conf = "is_host=false" + ("," + TUNED if self._tuned else "")
        command = [
            "python", "-m", "torch.distributed.run", "--nnodes=1:2", f"--nproc_per_node={work.processes}",
            "--rdzv_backend=c10d", f"--rdzv_endpoint=store:{STORE_PORT}", "--rdzv_id=bench",
            f"--rdzv_conf={conf}", "--max_restarts=100", "--local_addr=$(POD_IP)", WORKER,
            "--config", json.dumps(work.config), "--folder", f"{MOUNT}/{self._folder.name}",
            "--global-batch", str(work.global_batch), "--sequence-length", str(work.sequence_length),
            "--checkpoint-every", str(work.checkpoint_every),
        ]  # fmt: skip
        pod = self._pod("worker", command)
        apart = {
            "labelSelector": {"matchLabels": {"app": "worker"}},
            "topologyKey": "kubernetes.io/hostname",
        }
        pod["spec"]["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        }
        if self._tuned:
            pod["spec"]["tolerations"] = [
                {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute",
                 "tolerationSeconds": LOST_SECONDS}
                for what in ("not-ready", "unreachable")
            ]  # fmt: skip
            pod["spec"]["containers"][0]["env"].append(
                {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"}
            )
        return pod

    def _pod(self, app: str, command: Sequence[str]) -> dict[str, Any]:
        return {
            "metadata": {"labels": {"app": app}},
            "spec": {
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "main",
                        "image": TRAINER_IMAGE,
                        "command": list(command),
                        "securityContext": CONTAINER_SECURITY,
                        "env": [
                            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                            {"name": "OMP_NUM_THREADS", "value": "1"},
                            {"name": "HF_HUB_OFFLINE", "value": "1"},
                        ],
                        "volumeMounts": [
                            {"name": "shared", "mountPath": MOUNT},
                            {"name": "tmp", "mountPath": "/tmp"},
                        ],
                    }
                ],
                "volumes": [
                    {"name": "shared", "persistentVolumeClaim": {"claimName": CLAIM}},
                    {"name": "tmp", "emptyDir": {}},
                ],
            },
        }


@contextmanager
def torchrun_pods(
    cluster: Cluster, api: Api, quiet_node: str, workload: Workload, tuned: bool, folder: Path
) -> Iterator[TorchrunPods]:
    """Two pods that train. `folder`: an existing one in the cluster's shared folder, writable for everybody."""
    pods = TorchrunPods(cluster, api, quiet_node, workload, tuned, folder)
    try:
        pods.start()
        yield pods
    finally:
        pods.remove()


def _wait(what: str, condition: Callable[[], bool], timeout_seconds: float = CAP_SECONDS) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_seconds:g} s: {what}")
        time.sleep(LOOK_SECONDS)
