"""What all objects of the API have in common: paths, owners, labels, times. Pure; used by the whole adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainingrun.api.constants import API_VERSION, GROUP, KIND, PLURAL, VERSION, Label

Object = Mapping[str, Any]
"""An API object as plain JSON data."""

PODS, CONFIG_MAPS, CLAIMS = "pods", "configmaps", "persistentvolumeclaims"
NODES = "/api/v1/nodes"


@dataclass(frozen=True)
class RunRef:
    """Which run: the owner of all that belongs to it."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def split_key(key: str) -> tuple[str, str]:
    """(namespace, name) of a run's key."""
    namespace, _, name = key.partition("/")
    return namespace, name


def runs_path(namespace: str = "", name: str = "") -> str:
    """Of one run, of those of a namespace, or of all."""
    return _path(f"/apis/{GROUP}/{VERSION}", PLURAL, namespace, name)


def core_path(plural: str, namespace: str = "", name: str = "") -> str:
    return _path("/api/v1", plural, namespace, name)


def records_path(namespace: str, name: str = "") -> str:
    return _path("/apis/apps/v1", "controllerrevisions", namespace, name)


def events_path(namespace: str, name: str = "") -> str:
    return _path("/apis/events.k8s.io/v1", "events", namespace, name)


def _path(root: str, plural: str, namespace: str, name: str) -> str:
    where = f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"
    return f"{where}/{name}" if name else where


def metadata(item: Object) -> Mapping[str, Any]:
    return item.get("metadata") or {}


def name_of(item: Object) -> str:
    return str(metadata(item).get("name", ""))


def uid_of(item: Object) -> str:
    return str(metadata(item).get("uid", ""))


def label(item: Object, which: str) -> str:
    return str((metadata(item).get("labels") or {}).get(which, ""))


def run_ref(item: Object) -> RunRef:
    """Of a TrainingRun."""
    return RunRef(str(metadata(item).get("namespace", "")), name_of(item), uid_of(item))


def owner_reference(run: RunRef) -> dict[str, Any]:
    """The run owns it: it goes when the run goes."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": run.name,
        "uid": run.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def owner_uid(item: Object) -> str:
    """The uid of the run that controls this object; "" when no run does."""
    for owner in metadata(item).get("ownerReferences") or []:
        is_run = str(owner.get("apiVersion", "")).startswith(f"{GROUP}/") and owner.get("kind") == KIND
        if is_run and owner.get("controller"):
            return str(owner.get("uid", ""))
    return ""


def run_labels(run: RunRef) -> dict[str, str]:
    return {Label.RUN_NAME.value: run.name, Label.RUN_UID.value: run.uid}


def selector(**wanted: str) -> str:
    """A label selector; keys are names of Label members: `selector(RUN_UID=uid)`."""
    return ",".join(f"{Label[key].value}={value}" for key, value in sorted(wanted.items()))


def seconds(text: object) -> float:
    """A time of the API, `2026-11-30T03:04:05Z` or with a fraction, as seconds since 1970; 0.0 for none."""
    if not isinstance(text, str) or not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def micro_time(at: float) -> str:
    """Seconds since 1970 as events want them: `2026-11-30T03:04:05.000000Z`."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
