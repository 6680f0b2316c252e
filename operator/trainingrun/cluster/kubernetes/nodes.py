"""Node objects as ports.Node. Pure; called by the adapter for each LIST, and by the watch to tell news from noise."""

from __future__ import annotations

from typing import Any

from trainingrun.cluster.kubernetes.objects import Object, metadata, name_of
from trainingrun.ports import Node


def translate(node: Object) -> Node:
    """Ready: its kubelet says so, and lately (the node controller makes it Unknown otherwise).

    Capacity is what pods can get of it: status.allocatable.
    """
    status = node.get("status") or {}
    capacity = status.get("allocatable") or status.get("capacity") or {}
    return Node(
        name=name_of(node),
        ready=_ready(node) == "True",
        capacity={str(key): str(value) for key, value in capacity.items()},
    )


def news_of(node: Object) -> object:
    """What matters to a run. Equal for two states of a node that differ in heartbeats, images and the like only."""
    spec: dict[str, Any] = node.get("spec") or {}
    taints = sorted(
        f"{taint.get('key')}={taint.get('value')}:{taint.get('effect')}" for taint in spec.get("taints") or []
    )
    capacity = (node.get("status") or {}).get("allocatable") or {}
    deleting = bool(metadata(node).get("deletionTimestamp"))
    return (_ready(node), tuple(taints), bool(spec.get("unschedulable")), deleting, sorted(capacity.items()))


def _ready(node: Object) -> str:
    conditions = (node.get("status") or {}).get("conditions") or []
    return next((str(one.get("status")) for one in conditions if one.get("type") == "Ready"), "Unknown")
