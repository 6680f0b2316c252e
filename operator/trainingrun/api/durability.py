"""spec.checkpoint, spec.recovery, spec.output: what survives a failure, how many are borne, what is left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, StrictBool

from trainingrun.api import unsupported, uris
from trainingrun.api.base import Block
from trainingrun.api.cel import at_most_one, never_changes, rule, rules
from trainingrun.api.constants import Cause
from trainingrun.api.errors import FieldError

DURABLE_SECONDS = 300
"""Seconds between durable checkpoints when the manifest names no interval."""


class Location(Block):
    """Where durable checkpoints are. It belongs to one run."""

    uri: Annotated[str, AfterValidator(uris.check_location_uri)] = Field(
        min_length=1,
        max_length=uris.URI_LIMIT,
        description="A place that every node can write to: pvc://claim/path on a PersistentVolumeClaim "
        "beside the run, s3://bucket/prefix (with AWS_ACCESS_KEY_ID and the like in the environment of the pods), "
        "or file:// and its path.",
        json_schema_extra=rules(*uris.LOCATION_RULES),
    )


class MemoryTier(Block):
    """Snapshots in the memory of the nodes: what a run goes on from when a process or a node is lost."""

    interval_steps: int | None = Field(
        None,
        ge=0,
        le=10**6,
        description="Steps from one snapshot to the next; 0: none; omitted: measured, so that the stall "
        "stays small.",
    )
    copies: int = Field(
        2,
        ge=1,
        le=2,
        description="Copies of the state that memory keeps where there are nodes for them. 2: nodes with parts that "
        "no other node has keep each other's snapshots (buddies), where their memory holds them too; 1: only "
        "the copies that data parallelism makes.",
        json_schema_extra=rules(never_changes("spec.checkpoint.memory.copies")),
    )


class DurableTier(Block):
    """Checkpoints at `location`: what a run goes on from when no complete snapshot is left in memory."""

    model_config = ConfigDict(
        json_schema_extra=rules(at_most_one("spec.checkpoint.durable", "intervalSeconds", "intervalSteps"))
    )
    interval_seconds: int | None = Field(
        None,
        ge=1,
        le=604800,
        description=f"Seconds from one checkpoint to the next; omitted, and intervalSteps too: "
        f"{DURABLE_SECONDS}.",
    )
    interval_steps: int | None = Field(
        None, ge=1, le=10**9, description="Steps from one checkpoint to the next, instead of seconds."
    )
    keep_last: int = Field(3, ge=1, le=1000, description="How many of the newest checkpoints are kept.")

    def problems(self) -> Iterator[FieldError]:
        if self.interval_seconds is not None and self.interval_steps is not None:
            yield FieldError(
                "",
                None,
                f"both intervalSeconds ({self.interval_seconds}) and intervalSteps ({self.interval_steps}) "
                f"are set",
                "remove one of them",
            )


class Checkpoint(Block):
    """How the state of the run is kept."""

    location: Location = Field(
        description="Where durable checkpoints are.",
        json_schema_extra=rules(never_changes("spec.checkpoint.location")),
    )
    adopt: StrictBool = Field(
        False,
        description="Whether the run may continue the checkpoints of another run that it finds at location; "
        "this version supports false only.",
        json_schema_extra=rules(
            rule(
                "!self",
                "spec.checkpoint.adopt: true is not supported by this version; "
                f"hint: {unsupported.ADOPT_FIX}",
            )
        ),
    )
    memory: MemoryTier = Field(
        default_factory=lambda: MemoryTier.model_validate({}),
        description="Snapshots in the memory of the nodes.",
        json_schema_extra={"default": {}},
    )
    durable: DurableTier = Field(
        default_factory=lambda: DurableTier.model_validate({}),
        description="Checkpoints at location.",
        json_schema_extra={"default": {}},
    )

    def problems(self) -> Iterator[FieldError]:
        if self.adopt:
            yield FieldError("adopt", True, "true is not supported by this version", unsupported.ADOPT_FIX)


class Limit(Block):
    """How many failures of one cause are borne in a time window."""

    cause: Literal["Application", "OutOfMemory", "Infrastructure", "Preemption"] = Field(
        description="Application: the training code failed. OutOfMemory: a process was killed for its "
        "memory. Infrastructure: a node or its network was lost. Preemption: a node was taken away on "
        "purpose."
    )
    max: int = Field(
        ge=0, le=10000, description="Failures that are borne within the window; one more ends the run."
    )
    window_seconds: int = Field(3600, ge=1, le=31536000, description="Length of the window, up to now.")


_DEFAULT_LIMIT: dict[str, JsonValue] = {"cause": Cause.APPLICATION.value, "max": 3, "windowSeconds": 3600}


class Recovery(Block):
    """When a run is given up."""

    limits: list[Limit] = Field(
        default_factory=lambda: [Limit.model_validate(_DEFAULT_LIMIT)],
        max_length=4,
        description="Budgets by cause. A cause that is absent has no limit.",
        json_schema_extra={
            "default": [_DEFAULT_LIMIT],
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["cause"],
        },
    )
    no_progress_limit: int = Field(
        3,
        ge=1,
        le=1000,
        description="Restarts in a row without a newer checkpoint after which the run is given up.",
    )

    def problems(self) -> Iterator[FieldError]:
        seen: dict[str, int] = {}
        for index, limit in enumerate(self.limits):
            if limit.cause in seen:
                yield FieldError(
                    f"limits[{index}].cause",
                    limit.cause,
                    f"{limit.cause} has a limit already, at limits[{seen[limit.cause]}]",
                    "keep one of the two",
                )
            seen.setdefault(limit.cause, index)


class Output(Block):
    """The model that a complete run leaves behind."""

    format: Literal["Safetensors"] = Field(
        "Safetensors", description="A folder that transformers loads, with weights as safetensors."
    )
    uri: Annotated[str, AfterValidator(uris.check_folder_uri)] = Field(
        min_length=1,
        max_length=uris.URI_LIMIT,
        description="The folder: pvc://claim/path on a PersistentVolumeClaim beside the run, or file:// and "
        "its path.",
        json_schema_extra=rules(*uris.FOLDER_RULES),
    )
