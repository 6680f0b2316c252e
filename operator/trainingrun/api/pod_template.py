"""spec.podTemplate: what a user may add to the worker pods, in the words of a Kubernetes pod template.

Merged by name into the rendered pod. Fields that would break the product, or loosen the pod's security, are not
there; `unsupported` says what to do instead. The resources of a pod come from spec.resources alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from trainingrun.api.base import Block, shorten
from trainingrun.api.cel import rule, rules
from trainingrun.api.errors import FieldError
from trainingrun.api.pod_security import ContainerSecurity, PodSecurity, SecretName, Toleration
from trainingrun.api.pod_variables import ObjectName, Variable, VariablesFrom
from trainingrun.api.pod_volumes import PASSED_ON, Volume, VolumeMount
from trainingrun.api.worker_pod import CONTAINER, KEY_PREFIXES

SIZE_LIMIT = 65536
"""Bytes of a pod template as JSON: the record that freezes it, and each pod, have to hold it."""

_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
_MAP_BY = "x-kubernetes-list-map-keys"
_NOT_YOURS = f"keys that begin with {', '.join(KEY_PREFIXES)} are set by the operator or not at all"


def _keys_rule(path: str) -> dict[str, str]:
    prefixes = ", ".join(f"'{prefix}'" for prefix in KEY_PREFIXES)
    return rule(
        f"self.all(key, ![{prefixes}].exists(prefix, key.startsWith(prefix)))",
        f"{path}: {_NOT_YOURS}; hint: remove them",
    )


def _map(value: dict[str, Any], *more: dict[str, str]) -> dict[str, Any]:
    return {"maxProperties": 32, "additionalProperties": value, **rules(*more)}


class PodMetadata(Block):
    """Labels and annotations of the pods. Those of the run itself are not copied to its pods."""

    labels: dict[str, str] | None = Field(
        None,
        description="Further labels, such as a cost centre.",
        json_schema_extra=_map(
            {
                "description": "A value.",
                "type": "string",
                "maxLength": 63,
                "pattern": _LABEL_VALUE,
            },
            _keys_rule("spec.podTemplate.metadata.labels"),
        ),
    )
    annotations: dict[str, str] | None = Field(
        None,
        description="Further annotations.",
        json_schema_extra=_map(
            {"description": "A value.", "type": "string", "maxLength": 4096},
            _keys_rule("spec.podTemplate.metadata.annotations"),
        ),
    )

    def problems(self) -> Iterator[FieldError]:
        for field, values in (("labels", self.labels or {}), ("annotations", self.annotations or {})):
            yield from _too_many(field, values)
            for key, value in values.items():
                path = f'{field}["{key}"]'
                taken = next((prefix for prefix in KEY_PREFIXES if key.startswith(prefix)), "")
                if taken:
                    message = f"{taken}… is set by the operator or not at all"
                    yield FieldError(path, value, message, f"remove {key}")
                elif not _KEY.match(key):
                    message = f"{shorten(key)} cannot be the key of a {field.removesuffix('s')}"
                    yield FieldError(path, value, message, "write it like example.com/cost-centre")
                if field == "labels" and not (re.match(_LABEL_VALUE, value) and len(value) <= 63):
                    message = f"{shorten(value)} cannot be the value of a label"
                    fix = "use at most 63 letters, digits, '-', '_' and '.'"
                    yield FieldError(path, value, message, fix)
                if len(value) > 4096:
                    message = f"a value with {len(value)} characters, at most 4096 are allowed"
                    yield FieldError(path, value, message, "shorten it")


_TERM_LIST: dict[str, Any] = {
    "x-kubernetes-list-type": "atomic",
    "items": {"description": "A term, as in a pod.", "type": "object", **PASSED_ON},
}


class PodAntiAffinity(Block):
    """Pods to keep away from. That no two workers of a run share a node is added to it."""

    required_during_scheduling_ignored_during_execution: list[dict[str, Any]] | None = Field(
        None, max_length=16, description="Terms that must hold.", json_schema_extra=_TERM_LIST
    )
    preferred_during_scheduling_ignored_during_execution: list[dict[str, Any]] | None = Field(
        None, max_length=16, description="Terms that should hold.", json_schema_extra=_TERM_LIST
    )


class Affinity(Block):
    """Where the pods may run, in the words of a pod."""

    node_affinity: dict[str, Any] | None = Field(
        None, description="Nodes to run on, as in a pod.", json_schema_extra=PASSED_ON
    )
    pod_affinity: dict[str, Any] | None = Field(
        None, description="Pods to be near to, as in a pod.", json_schema_extra=PASSED_ON
    )
    pod_anti_affinity: PodAntiAffinity | None = Field(None, description="Pods to keep away from.")


class Container(Block):
    """The container that trains."""

    name: Literal["trainer"] = Field(description=f"Always {CONTAINER}: a worker pod has one container.")
    image: str | None = Field(
        None,
        min_length=1,
        max_length=512,
        description="Image with the trainer in it; omitted: the operator's own. One that is named by its "
        "digest cannot change under a run.",
        json_schema_extra={"pattern": r"^[^\s]+$"},
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = Field(
        None, description="When the image is pulled; omitted: Kubernetes's choice by its tag."
    )
    env: list[Variable] | None = Field(
        None,
        max_length=64,
        description="Environment variables.",
        json_schema_extra={"x-kubernetes-list-type": "map", _MAP_BY: ["name"]},
    )
    env_from: list[VariablesFrom] | None = Field(
        None,
        max_length=16,
        description="Secrets and ConfigMaps whose keys become environment variables.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    volume_mounts: list[VolumeMount] | None = Field(
        None,
        max_length=32,
        description="Where the container sees the volumes of spec.podTemplate.spec.volumes.",
        json_schema_extra={"x-kubernetes-list-type": "map", _MAP_BY: ["mountPath"]},
    )
    security_context: ContainerSecurity | None = Field(None, description="Who the processes are.")

    def problems(self) -> Iterator[FieldError]:
        if self.image is not None and re.search(r"\s", self.image):
            yield FieldError("image", self.image, f"{shorten(self.image)} has a space in it", "remove it")
        yield from _doubles("env", "name", [one.name for one in self.env or ()])
        yield from _doubles("volumeMounts", "mountPath", [one.mount_path for one in self.volume_mounts or ()])


_UNKNOWN_VOLUME = "mounts a volume that spec.podTemplate.spec.volumes does not have"


class PodSpec(Block):
    """What may be said of the pods."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.containers) || self.containers.all(one, !has(one.volumeMounts) || "
                "one.volumeMounts.all(mount, has(self.volumes) && "
                "self.volumes.exists(volume, volume.name == mount.name)))",
                f"spec.podTemplate.spec.containers[0].volumeMounts: {_UNKNOWN_VOLUME}; "
                "hint: add it there, or correct the name",
            )
        )
    )
    service_account_name: ObjectName | None = Field(
        None, description="Service account of the pods; omitted: default. Its token is not mounted."
    )
    node_selector: dict[str, str] | None = Field(
        None,
        description="Labels that a node must have.",
        json_schema_extra=_map(
            {"description": "A value.", "type": "string", "maxLength": 63, "pattern": _LABEL_VALUE}
        ),
    )
    tolerations: list[Toleration] | None = Field(
        None,
        max_length=32,
        description="Taints that the pods put up with.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    affinity: Affinity | None = Field(None, description="Where the pods may run.")
    priority_class_name: ObjectName | None = Field(None, description="Priority class of the pods.")
    scheduler_name: ObjectName | None = Field(None, description="Scheduler; omitted: the cluster's default.")
    runtime_class_name: ObjectName | None = Field(None, description="Runtime class of the pods.")
    image_pull_secrets: list[SecretName] | None = Field(
        None,
        max_length=16,
        description="Secrets to pull the image with.",
        json_schema_extra={"x-kubernetes-list-type": "map", _MAP_BY: ["name"]},
    )
    termination_grace_period_seconds: int | None = Field(
        None, ge=1, le=3600, description="Time to stop in, in seconds; omitted: 30."
    )
    security_context: PodSecurity | None = Field(None, description="Who the processes are.")
    volumes: list[Volume] | None = Field(
        None,
        max_length=32,
        description="Further volumes.",
        json_schema_extra={"x-kubernetes-list-type": "map", _MAP_BY: ["name"]},
    )
    containers: list[Container] | None = Field(
        None,
        max_length=1,
        description=f"The container that trains, named {CONTAINER}.",
        json_schema_extra={"x-kubernetes-list-type": "map", _MAP_BY: ["name"]},
    )

    def problems(self) -> Iterator[FieldError]:
        yield from _doubles("volumes", "name", [one.name for one in self.volumes or ()])
        yield from _doubles("imagePullSecrets", "name", [one.name for one in self.image_pull_secrets or ()])
        yield from _too_many("nodeSelector", self.node_selector or {})
        known = {one.name for one in self.volumes or ()}
        for container in self.containers or ():
            for index, mount in enumerate(container.volume_mounts or ()):
                if mount.name not in known:
                    message = f"{mount.name} {_UNKNOWN_VOLUME}"
                    path = f"containers[0].volumeMounts[{index}].name"
                    yield FieldError(path, mount.name, message, "add it there, or correct the name")


class PodTemplate(Block):
    """Merged by name into the pods of the run."""

    metadata: PodMetadata | None = Field(None, description="Labels and annotations of the pods.")
    spec: PodSpec | None = Field(None, description="What may be said of the pods.")

    def problems(self) -> Iterator[FieldError]:
        size = len(json.dumps(self.model_dump(mode="json", by_alias=True, exclude_none=True)))
        if size > SIZE_LIMIT:
            message = f"has {size} bytes as JSON, at most {SIZE_LIMIT} are allowed"
            yield FieldError("", None, message, "move long values into a ConfigMap and name it in envFrom")


def _doubles(field: str, key: str, names: list[str]) -> Iterator[FieldError]:
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name in first:
            message = f"{name} is there already, at {field}[{first[name]}]"
            yield FieldError(f"{field}[{index}].{key}", name, message, "keep one of the two")
        first.setdefault(name, index)


def _too_many(field: str, values: Mapping[str, str]) -> Iterator[FieldError]:
    if len(values) > 32:
        message = f"a mapping with {len(values)} keys, at most 32 allowed"
        yield FieldError(field, None, message, f"remove {len(values) - 32}")
