"""spec.podTemplate: volumes of the pod, of the kinds that the restricted Pod Security level allows, and their mounts.

Names are Kubernetes's own. Kinds that few need are handed on as they are: the API server checks them when a pod
is created.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import ConfigDict, Field, StrictBool

from trainingrun.api.base import DNS_LABEL_PATTERN, Block, shorten
from trainingrun.api.cel import rule, rules
from trainingrun.api.errors import FieldError
from trainingrun.api.pod_variables import Key, ObjectName
from trainingrun.api.quantity import QUANTITY_PATTERN
from trainingrun.api.worker_pod import USED_PATHS, VOLUME_PREFIX, path_in_use

PASSED_ON: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True, "maxProperties": 32}


class EmptyDir(Block):
    """A folder that lives as long as the pod."""

    medium: Literal["", "Memory", "HugePages"] | None = Field(
        None, description="Memory: counted in the pod's memory; omitted: the node's disk."
    )
    size_limit: str | None = Field(
        None,
        max_length=32,
        description="Most that it may hold, such as 10Gi.",
        json_schema_extra={"pattern": QUANTITY_PATTERN},
    )


class KeyToPath(Block):
    """A key as a file."""

    key: Key = Field(description="The key.")
    path: str = Field(min_length=1, max_length=1024, description="Path of the file in the volume.")
    mode: int | None = Field(None, ge=0, le=0o777, description="Permissions of the file.")


_ITEMS: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}


class _KeysAsFiles(Block):
    """What a ConfigMap and a Secret have in common: Kubernetes calls only the field with the name differently."""

    name: ObjectName
    items: list[KeyToPath] | None = Field(
        None, max_length=64, description="Which keys; omitted: all.", json_schema_extra=_ITEMS
    )
    default_mode: int | None = Field(None, ge=0, le=0o777, description="Permissions of the files.")
    optional: StrictBool | None = Field(None, description="Whether it may be missing; omitted: false.")


class ConfigMapVolume(_KeysAsFiles):
    """Keys of a ConfigMap as files."""

    name: ObjectName = Field(description="Name of the ConfigMap.")


class SecretVolume(_KeysAsFiles):
    """Keys of a Secret as files."""

    name: ObjectName = Field(alias="secretName", description="Name of the Secret.")


class ClaimVolume(Block):
    """A PersistentVolumeClaim beside the run."""

    claim_name: ObjectName = Field(description="Name of the claim.")
    read_only: StrictBool | None = Field(None, description="Whether it is only read; omitted: false.")


VOLUME_SOURCES = (
    "emptyDir",
    "configMap",
    "secret",
    "persistentVolumeClaim",
    "projected",
    "downwardAPI",
    "csi",
    "ephemeral",
)
_ONE_SOURCE = "needs exactly one source"
_VOLUME_OF_OURS = f"names that begin with {VOLUME_PREFIX} belong to the operator"


class Volume(Block):
    """A volume that the container may mount: a name and exactly one source."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"!self.name.startsWith('{VOLUME_PREFIX}')",
                f"{_VOLUME_OF_OURS}; hint: rename the volume",
                f"%s: {_VOLUME_OF_OURS}; hint: rename the volume",
                "self.name",
            ),
            rule(
                f"[{', '.join(f'has(self.{source})' for source in VOLUME_SOURCES)}]"
                ".filter(given, given).size() == 1",
                f"{_ONE_SOURCE}; hint: set one of {', '.join(VOLUME_SOURCES)}",
                f"%s: {_ONE_SOURCE}; hint: set one of {', '.join(VOLUME_SOURCES)}",
                "self.name",
            ),
        )
    )
    name: str = Field(
        min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN, description="Name of the volume."
    )
    empty_dir: EmptyDir | None = Field(None, description="A folder that lives as long as the pod.")
    config_map: ConfigMapVolume | None = Field(None, description="Keys of a ConfigMap as files.")
    secret: SecretVolume | None = Field(None, description="Keys of a Secret as files.")
    persistent_volume_claim: ClaimVolume | None = Field(None, description="A PersistentVolumeClaim.")
    projected: dict[str, Any] | None = Field(
        None, description="Several sources in one folder, as in a pod.", json_schema_extra=PASSED_ON
    )
    downward_api: dict[str, Any] | None = Field(
        None,
        alias="downwardAPI",
        description="Fields of the pod as files, as in a pod.",
        json_schema_extra=PASSED_ON,
    )
    csi: dict[str, Any] | None = Field(
        None, description="A volume of a CSI driver, as in a pod.", json_schema_extra=PASSED_ON
    )
    ephemeral: dict[str, Any] | None = Field(
        None, description="A claim made for each pod, as in a pod.", json_schema_extra=PASSED_ON
    )

    def problems(self) -> Iterator[FieldError]:
        if self.name.startswith(VOLUME_PREFIX):
            yield FieldError("name", self.name, f"{self.name}: {_VOLUME_OF_OURS}", "rename the volume")
        sources = [field.alias for name, field in type(self).model_fields.items() if name != "name"]
        given = [alias for alias in sources if alias and self._given(alias)]
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "has no source"
            message = f"{self.name}: {found}, exactly one source is needed"
            yield FieldError("", None, message, f"set one of {', '.join(VOLUME_SOURCES)}")

    def _given(self, alias: str) -> bool:
        fields = type(self).model_fields
        return any(field.alias == alias and getattr(self, name) is not None for name, field in fields.items())


_PATH = r"^(/[^/:]+)+$"
_BAD_PATH = "must be an absolute path without : and .., and without / at its end"
_IN_THE_WAY = "is in the way of a path that the worker uses itself"
_USED = ", ".join(f"'{path}'" for path in USED_PATHS)


class VolumeMount(Block):
    """Where the container sees a volume."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"self.mountPath.matches('{_PATH}') && !self.mountPath.contains('..')",
                f"mountPath: {_BAD_PATH}; hint: write it from /, such as /data",
                f"mountPath: %s {_BAD_PATH}; hint: write it from /, such as /data",
                "self.mountPath",
            ),
            rule(
                f"[{_USED}].all(used, self.mountPath != used && !self.mountPath.startsWith(used + '/') && "
                "!used.startsWith(self.mountPath + '/'))",
                f"mountPath: {_IN_THE_WAY}; hint: mount it somewhere else, such as /data",
                f"mountPath: %s {_IN_THE_WAY}; hint: mount it somewhere else, such as /data",
                "self.mountPath",
            ),
        )
    )
    name: str = Field(
        min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN, description="Name of the volume."
    )
    mount_path: str = Field(min_length=1, max_length=512, description="Absolute path in the container.")
    sub_path: str | None = Field(None, max_length=512, description="Folder of the volume; omitted: all.")
    read_only: StrictBool | None = Field(None, description="Whether it is only read; omitted: false.")

    def problems(self) -> Iterator[FieldError]:
        path = self.mount_path
        if not re.fullmatch(_PATH, path) or ".." in path:
            yield FieldError("mountPath", path, f"{shorten(path)} {_BAD_PATH}", "write it from /")
        elif used := path_in_use(path):
            message = f"{path} is in the way of {used}, which the worker uses itself"
            yield FieldError("mountPath", path, message, "mount it somewhere else, such as /data")
