"""Builders of API objects as a real cluster has them, for tests of the Kubernetes adapter."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.operator.control_builders import a_revision, a_spec, an_epoch

from trainingrun.api.conditions import timestamp
from trainingrun.cluster.kubernetes.objects import RunRef, owner_reference, run_labels
from trainingrun.cluster.kubernetes.settings import KubeSettings
from trainingrun.ports import PodTemplate
from trainingrun.protocol import wire
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.records import Epoch, Revision

NOW = 1_796_040_000.0
SPACE = "team-a"
RUN = RunRef(SPACE, "demo", "uid-demo")
SETTINGS = KubeSettings(
    operator_namespace="system",
    trainer_image="registry.example/trainer:1",
    membership_name="trainingrun-membership",
    watch_namespaces=(SPACE,),
    token_file="/nonexistent/token",
    cache_seconds=0.0,
    request_seconds=2.0,
)
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nexample\n-----END CERTIFICATE-----\n"


def ago(seconds: float) -> str:
    return timestamp(NOW - seconds)


def a_run_object(run: RunRef = RUN, **fields: Any) -> dict[str, Any]:
    metadata = {"namespace": run.namespace, "name": run.name, "uid": run.uid, "generation": 1}
    item = {"metadata": metadata, "spec": {"task": "pretrain"}, "status": {}}
    return {**item, **fields}


class PodBuilder:
    """`a_pod_object().running().restarted(code=137, reason="OOMKilled").item`."""

    def __init__(self, slot: int = 0, incarnation: int = 0, run: RunRef = RUN) -> None:
        self.item: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{run.name}-{slot}-{incarnation}",
                "namespace": run.namespace,
                "uid": f"uid-{slot}-{incarnation}",
                "creationTimestamp": ago(300),
                "labels": {
                    **run_labels(run),
                    "trainingrun.dev/slot": str(slot),
                    "trainingrun.dev/incarnation": str(incarnation),
                    "trainingrun.dev/revision": f"{run.name}-r1",
                },
                "ownerReferences": [owner_reference(run)],
            },
            "spec": {"containers": [{"name": "trainer"}]},
            "status": {"phase": "Pending", "conditions": []},
        }

    @property
    def _status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.item["status"]
        return status

    def foreign(self) -> PodBuilder:
        """Somebody else's, that merely has the name."""
        self.item["metadata"].update(labels={"app": "web"}, ownerReferences=[])
        return self

    def on(self, node: str = "node1") -> PodBuilder:
        self.item["spec"]["nodeName"] = node
        return self

    def phase(self, phase: str, reason: str = "", message: str = "") -> PodBuilder:
        self._status.update(phase=phase, **({"reason": reason, "message": message} if reason else {}))
        return self

    def condition(
        self, kind: str, status: str, reason: str = "", message: str = "", since: float = 5.0
    ) -> PodBuilder:
        condition = {"type": kind, "status": status, "lastTransitionTime": ago(since)}
        self._status["conditions"].append(
            {**condition, **({"reason": reason, "message": message} if reason else {})}
        )
        return self

    def deleting(self) -> PodBuilder:
        self.item["metadata"]["deletionTimestamp"] = ago(1)
        return self

    def running(self, node: str = "node1") -> PodBuilder:
        self._container({"running": {"startedAt": ago(60)}})
        return self.on(node).phase("Running").condition("Ready", "True")

    def waiting(self, reason: str, message: str = "", node: str = "node1") -> PodBuilder:
        self._container({"waiting": {"reason": reason, **({"message": message} if message else {})}})
        return self.on(node)

    def ended(self, code: int, reason: str = "Error", message: str = "", since: float = 5.0) -> PodBuilder:
        """The container has ended, as it is now."""
        self._container({"terminated": _terminated(code, reason, message, since)})
        return self

    def before(self, code: int, reason: str = "Error", message: str = "", since: float = 5.0) -> PodBuilder:
        """The container before the present one ended so."""
        container = self._status["containerStatuses"][0]
        container["lastState"] = {"terminated": _terminated(code, reason, message, since)}
        container["restartCount"] = 1
        return self

    def _container(self, state: Mapping[str, Any]) -> None:
        status = {"name": "trainer", "state": dict(state), "lastState": {}, "restartCount": 0}
        self._status["containerStatuses"] = [status]


def a_pod_object(slot: int = 0, incarnation: int = 0, run: RunRef = RUN) -> PodBuilder:
    return PodBuilder(slot, incarnation, run)


def _terminated(code: int, reason: str, message: str, since: float) -> dict[str, Any]:
    return {"exitCode": code, "reason": reason, "message": message, "finishedAt": ago(since)}


def said(code: int, reason: str, message: str = "", **fields: Any) -> str:
    """An agent's last words, as in the termination message."""
    return json.dumps(wire.to_json(Termination(code, reason, message, **fields)))


def a_node_object(name: str = "node1", ready: str = "True", **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "lastHeartbeatTime": ago(1)}]
    allocatable = {"cpu": "2", "memory": "8Gi"}
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": dict(spec),
        "status": {"conditions": conditions, "allocatable": allocatable},
    }


def revision_of(run: RunRef = RUN, number: int = 1) -> Revision:
    template = {
        "metadata": {"labels": {"team": "nlp"}},
        "spec": {
            "restartPolicy": "OnFailure",
            "containers": [{"name": "trainer", "image": "x"}],
            "volumes": [
                {
                    "name": "trainingrun-config",
                    "projected": {"sources": [{"configMap": {"name": "", "items": [{"key": "spec.json"}]}}]},
                }
            ],
        },
    }
    return replace(
        a_revision(a_spec()),
        name=f"{run.name}-r{number}",
        run=run.name,
        run_uid=run.uid,
        revision=number,
        pod_template=template,
    )


def epoch_of(number: int, run: RunRef = RUN) -> Epoch:
    return replace(an_epoch(number), name=f"{run.name}-e{number}", run=run.name, run_uid=run.uid)


def template_of(slot: int = 0, incarnation: int = 0, run: RunRef = RUN) -> PodTemplate:
    return PodTemplate(
        run=run.name,
        run_uid=run.uid,
        slot=slot,
        incarnation=incarnation,
        revision=f"{run.name}-r1",
        resources={"cpu": "1"},
        processes=1,
        namespace=run.namespace,
        template=copy.deepcopy(revision_of(run).pod_template),
    )
