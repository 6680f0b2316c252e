"""spec.podTemplate: who the processes of a pod are, and where the pod may run.

What is looser than the restricted level of the Pod Security Standards cannot be said: whatever a manifest asks
for, its pods pass that level.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from trainingrun.api.base import Block
from trainingrun.api.pod_variables import ObjectName

Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]


class SeccompProfile(Block):
    """Which system calls are allowed."""

    type: Literal["RuntimeDefault", "Localhost"] = Field(
        description="RuntimeDefault, or Localhost: a file on the node."
    )
    localhost_profile: str | None = Field(None, max_length=253, description="The file, for Localhost.")


class SELinuxOptions(Block):
    """The SELinux label of the processes."""

    level: str | None = Field(None, max_length=253, description="SELinux level.")
    type: Literal["container_t", "container_init_t", "container_kvm_t", "container_engine_t"] | None = Field(
        None, description="SELinux type, one of those that are confined."
    )


class ContainerSecurity(Block):
    """Who the processes are. Privileges cannot be added."""

    run_as_user: UserId | None = Field(None, description="User id, not 0; omitted: 65532.")
    run_as_group: Id | None = Field(None, description="Group id; omitted: 65532.")
    read_only_root_filesystem: StrictBool | None = Field(
        None,
        description="Whether the image's files are protected; omitted: true. false is for images that write "
        "beside themselves.",
    )


class PodSecurity(Block):
    """Who the processes are, for the whole pod."""

    run_as_user: UserId | None = Field(None, description="User id, not 0; omitted: 65532.")
    run_as_group: Id | None = Field(None, description="Group id; omitted: 65532.")
    fs_group: Id | None = Field(None, description="Group that owns mounted volumes; omitted: 65532.")
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = Field(
        None,
        description="When the files of volumes are given to fsGroup; omitted: OnRootMismatch, which does not "
        "walk a large volume at each start.",
    )
    supplemental_groups: list[Id] | None = Field(
        None,
        max_length=32,
        description="Further group ids.",
        json_schema_extra={
            "x-kubernetes-list-type": "atomic",
            "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "description": "A group id."},
        },
    )
    seccomp_profile: SeccompProfile | None = Field(
        None, description="Which system calls are allowed; omitted: RuntimeDefault."
    )
    se_linux_options: SELinuxOptions | None = Field(
        None, description="SELinux label; omitted: the runtime's choice."
    )


class Toleration(Block):
    """A taint that the pods put up with."""

    key: str | None = Field(None, max_length=317, description="Key of the taint; omitted: every key.")
    operator: Literal["Exists", "Equal"] | None = Field(
        None, description="How the value is compared; omitted: Equal."
    )
    value: str | None = Field(None, max_length=63, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint; omitted: every effect."
    )
    toleration_seconds: int | None = Field(
        None, ge=0, le=2**31 - 1, description="How long a NoExecute taint is put up with; omitted: for ever."
    )


class SecretName(Block):
    """A Secret in the run's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
