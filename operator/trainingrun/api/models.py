"""TrainingRun as a user writes it: exactly the fields that act in this version.

What is known but does not act yet is refused by name (`unsupported`), never ignored. Read by `load`, which
fills in the defaults that depend on other fields; turned into the CRD by `crd`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from trainingrun.api import deepspeed
from trainingrun.api.base import DNS_LABEL_PATTERN, Block, refusal, shorten
from trainingrun.api.cel import never_changes, rule, rules
from trainingrun.api.constants import NAME_LIMIT
from trainingrun.api.data import Data
from trainingrun.api.durability import Checkpoint, Output, Recovery
from trainingrun.api.errors import FieldError
from trainingrun.api.language_model import Model
from trainingrun.api.placement import Parallelism, Resources, Scale
from trainingrun.api.places import place_problems
from trainingrun.api.pod_template import PodTemplate
from trainingrun.api.training import Training

NAME_RULES = (
    rule(
        f"self.metadata.name.size() <= {NAME_LIMIT}",
        f"metadata.name: is longer than {NAME_LIMIT} characters; "
        "hint: shorten it: pods are named <name>-<slot>-<incarnation>",
        f"metadata.name: %s has %d characters, at most {NAME_LIMIT} are allowed; "
        "hint: shorten it: pods are named <name>-<slot>-<incarnation>",
        "self.metadata.name",
        "self.metadata.name.size()",
    ),
    rule(
        f"self.metadata.name.matches('{DNS_LABEL_PATTERN}')",
        "metadata.name: may have lower-case letters, digits and - only; hint: leave out dots",
        "metadata.name: %s may have lower-case letters, digits and - only; hint: leave out dots",
        "self.metadata.name",
    ),
)


class TrainingRunSpec(Block):
    """What to train, on what, how far, and what to do when something fails."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.training.sequenceLength <= self.model.config.max_position_embeddings",
                "spec.training.sequenceLength: is more than spec.model.config.max_position_embeddings; "
                "hint: lower sequenceLength or raise max_position_embeddings",
                "spec.training.sequenceLength: %d is more than "
                "spec.model.config.max_position_embeddings (%d); "
                "hint: lower sequenceLength or raise max_position_embeddings",
                "self.training.sequenceLength",
                "self.model.config.max_position_embeddings",
            ),
            rule(
                "!(self.output.uri + '/').startsWith(self.checkpoint.location.uri + '/') && "
                "!(self.checkpoint.location.uri + '/').startsWith(self.output.uri + '/')",
                "spec.output.uri: is the same as spec.checkpoint.location.uri, or one lies within the other; "
                "hint: give the model another folder",
                "spec.output.uri: %s is the same as spec.checkpoint.location.uri, or one lies within the other; "
                "hint: give the model another folder",
                "self.output.uri",
            ),
            rule(
                "has(self.podTemplate) == has(oldSelf.podTemplate)",
                "spec.podTemplate: cannot be added to a run, or taken from it, once the run exists; "
                "hint: delete the run, or create one with another name and another checkpoint location",
            ),
            *deepspeed.RULES,
        )
    )

    task: Literal["pretrain"] = Field(
        description="The kind of work. pretrain: train a model on text from random weights.",
        json_schema_extra=rules(never_changes("spec.task")),
    )
    model: Model = Field(
        description="The model and its tokenizer.", json_schema_extra=rules(never_changes("spec.model"))
    )
    data: Data = Field(
        description="What it is trained and measured on.", json_schema_extra=rules(never_changes("spec.data"))
    )
    training: Training = Field(
        description="The mathematics: duration, batch, optimizer, schedule.",
        json_schema_extra=rules(never_changes("spec.training")),
    )
    scale: Scale = Field(description="How many nodes. May be changed at any time.")
    resources: Resources = Field(
        description="What each node gives.", json_schema_extra=rules(never_changes("spec.resources"))
    )
    parallelism: Parallelism = Field(
        default_factory=lambda: Parallelism.model_validate({}),
        description="How the model is split over the nodes; omitted: planned.",
        json_schema_extra={"default": {}, **rules(never_changes("spec.parallelism"))},
    )
    checkpoint: Checkpoint = Field(description="How the state of the run is kept.")
    recovery: Recovery = Field(
        default_factory=lambda: Recovery.model_validate({}),
        description="When the run is given up. May be changed at any time.",
        json_schema_extra={"default": {}},
    )
    output: Output = Field(
        description="The model that the run leaves.", json_schema_extra=rules(never_changes("spec.output"))
    )
    pod_template: PodTemplate | None = Field(
        None,
        description="What is added to the pods of the run.",
        json_schema_extra=rules(never_changes("spec.podTemplate")),
    )

    def problems(self) -> Iterator[FieldError]:
        length, limit = self.training.sequence_length, self.model.config.max_position_embeddings
        if length > limit:
            yield FieldError(
                "training.sequenceLength",
                length,
                f"{length} is more than spec.model.config.max_position_embeddings ({limit})",
                f"lower sequenceLength to {limit} or raise max_position_embeddings to {length}",
            )
        yield from self._late_stages()
        yield from deepspeed.problems(self)
        yield from place_problems(self)

    def _late_stages(self) -> Iterator[FieldError]:
        """A stage that would never begin is a mistake, and not a wish."""
        training = self.training
        whole = training.total_steps * training.batch_sequences * training.sequence_length
        for index, stage in enumerate(self.data.stages):
            if stage.after_tokens >= whole:
                yield FieldError(
                    f"data.stages[{index}].afterTokens",
                    stage.after_tokens,
                    f"{stage.after_tokens} tokens are not before the end of the run: {training.total_steps} steps x "
                    f"{training.batch_sequences} sequences x {training.sequence_length} tokens = {whole}",
                    "lower it, or train longer",
                )


class Metadata(BaseModel):
    """The part of a Kubernetes object's metadata that we read; the rest of it is the API server's."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(description="Name of the run.")
    namespace: str = Field("default", description="Namespace of the run.")

    @field_validator("name", mode="before")
    @classmethod
    def _short_label(cls, name: Any) -> Any:
        if not isinstance(name, str):
            return name
        if len(name) > NAME_LIMIT:
            message = f"{shorten(name)} has {len(name)} characters, at most {NAME_LIMIT} are allowed"
            fix = "shorten it: pods are named <name>-<slot>-<incarnation>"
            raise refusal(FieldError("", name, message, fix))
        if not re.fullmatch(DNS_LABEL_PATTERN, name):
            message = (
                f"{shorten(name)} may have lower-case letters, digits and '-' only, and '-' not at its ends"
            )
            raise refusal(FieldError("", name, message, f"use for example {_as_label(name)}"))
        return name


class TrainingRun(BaseModel):
    """One piece of work on one language model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    apiVersion: Literal["trainingrun.dev/v1alpha1"] = Field(description="trainingrun.dev/v1alpha1")
    kind: Literal["TrainingRun"] = Field(description="TrainingRun")
    metadata: Metadata = Field(description="Name and namespace.")
    spec: TrainingRunSpec = Field(description="What is wanted.")
    status: Any = Field(None, description="What is; written by the controller, ignored here.")


def _as_label(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "my-run"
