"""Builders of pods for tests of the cluster itself, at the restricted Pod Security level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.cluster.harness import Cluster
from tests.cluster.harness.layout import TRAINER_IMAGE

CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def restricted_pod(
    name: str,
    node: str,
    command: Sequence[str],
    volumes: Sequence[tuple[str, dict[str, Any]]] = (),
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A pod on that node which runs `command`; `volumes` are (path in the container, volume source)."""
    names = [f"v{number}" for number, _ in enumerate(volumes)]
    return {
        "metadata": {"name": name, "labels": {"app": name, **(labels or {})}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "OnFailure",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": TRAINER_IMAGE,
                    "command": list(command),
                    "securityContext": CONTAINER_SECURITY,
                    "volumeMounts": [
                        {"name": volume, "mountPath": path}
                        for volume, (path, _) in zip(names, volumes, strict=True)
                    ],
                }
            ],
            "volumes": [
                {"name": volume, **source} for volume, (_, source) in zip(names, volumes, strict=True)
            ],
        },
    }


def create(cluster: Cluster, namespace: str, kind: str, body: dict[str, Any]) -> None:
    cluster.api.request("POST", f"/api/v1/namespaces/{namespace}/{kind}", body)


def running(cluster: Cluster, namespace: str, pod: str, restarts: int = 0) -> bool:
    """Whether its container runs, for the `restarts`th time again at least."""
    found = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")
    states = found["status"].get("containerStatuses", ())
    return bool(states) and all("running" in s["state"] and s["restartCount"] >= restarts for s in states)


def log(cluster: Cluster, namespace: str, pod: str) -> str:
    status, data = cluster.api.raw("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log")
    return data.decode() if status == 200 else ""
