"""TrainingRun objects as ports.RunObject, and what is sent to write a status. Pure; called by the adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainingrun.api.conditions import timestamp
from trainingrun.api.constants import API_VERSION, KIND
from trainingrun.cluster.kubernetes.objects import Object, metadata, seconds, split_key
from trainingrun.ports import RunObject

NEVER = timestamp(0)


def translate(item: Object) -> RunObject:
    """The manifest is what the user wrote (and defaults of the schema): name, namespace and spec, nothing else."""
    about = metadata(item)
    name, namespace = str(about.get("name", "")), str(about.get("namespace", ""))
    return RunObject(
        name=name,
        uid=str(about.get("uid", "")),
        generation=int(about.get("generation") or 0),
        resource_version=str(about.get("resourceVersion", "")),
        manifest={
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": item.get("spec") or {},
        },
        status=_status(item.get("status") or {}),
        deleting=bool(about.get("deletionTimestamp")),
        created_at=seconds(about.get("creationTimestamp")),
        namespace=namespace,
    )


def _status(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the conditions that the schema gives to a new run: nobody has set them, and not in 1970."""
    conditions = stored.get("conditions") or []
    set_by_us = [one for one in conditions if one.get("lastTransitionTime") != NEVER]
    return stored if len(set_by_us) == len(conditions) else {**stored, "conditions": set_by_us}


def status_update(key: str, status: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The body of a PUT on the status subresource: taken only when `version` is still the newest."""
    namespace, name = split_key(key)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace, "resourceVersion": version},
        "status": dict(status),
    }


def news_of(item: Object) -> object:
    """What the controller reacts to. It does not change when only status does: that is its own work."""
    about = metadata(item)
    return (about.get("generation"), bool(about.get("deletionTimestamp")))
