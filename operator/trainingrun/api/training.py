"""spec.training: the mathematics of the run. It is the same at every size of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import ConfigDict, Field

from trainingrun.api.base import Block, counted
from trainingrun.api.cel import exactly_one, rule, rules
from trainingrun.api.errors import FieldError


class Duration(Block):
    """Exactly one of `tokens` and `steps`."""

    model_config = ConfigDict(
        json_schema_extra=rules(exactly_one("spec.training.duration", "tokens", "steps"))
    )
    tokens: int | None = Field(
        None, ge=1, le=10**15, description="Train on this many tokens, rounded up to whole steps."
    )
    steps: int | None = Field(None, ge=1, le=10**9, description="Train this many steps (optimizer updates).")

    def problems(self) -> Iterator[FieldError]:
        if (self.tokens is None) == (self.steps is None):
            which = (
                "neither tokens nor steps is set" if self.steps is None else "both tokens and steps are set"
            )
            yield FieldError("", None, which, "set exactly one, for example {steps: 1000}")


class GlobalBatch(Block):
    """Exactly one of `tokens` and `sequences`."""

    model_config = ConfigDict(
        json_schema_extra=rules(exactly_one("spec.training.globalBatch", "tokens", "sequences"))
    )
    tokens: int | None = Field(
        None, ge=1, le=2**40, description="Tokens of one step: a multiple of sequenceLength."
    )
    sequences: int | None = Field(None, ge=1, le=2**24, description="Sequences of one step.")

    def problems(self) -> Iterator[FieldError]:
        if (self.tokens is None) == (self.sequences is None):
            which = (
                "neither tokens nor sequences is set"
                if self.sequences is None
                else "both tokens and sequences are set"
            )
            yield FieldError("", None, which, "set exactly one, for example {sequences: 32}")


class Optimizer(Block):
    """AdamW with decoupled weight decay."""

    name: Literal["AdamW"] = Field("AdamW", description="The optimizer.")
    learning_rate: float = Field(ge=1e-12, le=10, description="Peak learning rate.")
    betas: list[float] = Field(
        default=[0.9, 0.95],
        min_length=2,
        max_length=2,
        description="Decay of the two moments, each from 0 to less than 1.",
        json_schema_extra={
            "x-kubernetes-list-type": "atomic",
            "items": {"type": "number", "minimum": 0, "maximum": 0.9999999, "description": "One decay."},
        },
    )
    epsilon: float = Field(1e-8, ge=1e-18, le=0.1, description="Added to the root of the second moment.")
    weight_decay: float = Field(
        0.1, ge=0, le=10, description="Decoupled weight decay; norms and biases have none."
    )
    max_grad_norm: float = Field(
        1.0, ge=1e-9, le=1e9, description="Gradients with a larger global norm are scaled down to it."
    )

    def problems(self) -> Iterator[FieldError]:
        for index, beta in enumerate(self.betas):
            if not 0 <= beta <= 0.9999999:
                message = f"{beta:g} is not a decay: it must be at least 0 and less than 1"
                yield FieldError(f"betas[{index}]", beta, message, "use for example [0.9, 0.95]")


class Schedule(Block):
    """The learning rate over the run: linear warm-up, then a cosine down to the minimum at the last step."""

    name: Literal["Cosine"] = Field("Cosine", description="The shape after the warm-up.")
    warmup_permille: int = Field(
        50, ge=0, le=1000, description="Share of the steps that warm up, in thousandths of the run."
    )
    min_learning_rate_permille: int = Field(
        100, ge=0, le=1000, description="Learning rate at the end, in thousandths of the peak."
    )


class Training(Block):
    """How it is trained. All of it is fixed once the run exists."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.globalBatch.tokens) || self.globalBatch.tokens % self.sequenceLength == 0",
                "spec.training.globalBatch.tokens: must be a multiple of spec.training.sequenceLength; "
                "hint: use a multiple of it",
                "spec.training.globalBatch.tokens: %d is not a multiple of "
                "spec.training.sequenceLength (%d); hint: use %d",
                "self.globalBatch.tokens",
                "self.sequenceLength",
                "(self.globalBatch.tokens / self.sequenceLength + 1) * self.sequenceLength",
            )
        )
    )
    duration: Duration = Field(description="How long: exactly one of tokens and steps.")
    global_batch: GlobalBatch = Field(
        description="How much one step reads: exactly one of tokens and sequences. It is the same at every "
        "size."
    )
    sequence_length: int = Field(
        ge=2, le=16777216, description="Tokens of one sequence; at most model.config.max_position_embeddings."
    )
    precision: Literal["FP32", "FP64"] = Field(
        "FP32",
        description="Floating-point format of weights, gradients and optimizer. FP64 is slow: it is meant "
        "for proofs that two ways of computing agree.",
    )
    optimizer: Optimizer = Field(description="The optimizer.")
    schedule: Schedule = Field(
        default_factory=lambda: Schedule.model_validate({}),
        description="The learning rate over the run.",
        json_schema_extra={"default": {}},
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Seed of the random weights.")

    def problems(self) -> Iterator[FieldError]:
        tokens, length = self.global_batch.tokens, self.sequence_length
        if tokens is not None and tokens % length:
            count = tokens // length
            nearest = [f"{n * length} ({counted(n, 'sequence')})" for n in (count, count + 1) if n]
            yield FieldError(
                "globalBatch.tokens",
                tokens,
                f"{tokens} is not a multiple of spec.training.sequenceLength ({length}): {tokens} = {count} "
                f"x {length} + {tokens % length}",
                f"use {' or '.join(nearest)}",
            )

    @property
    def batch_sequences(self) -> int:
        """Sequences of one step."""
        batch = self.global_batch
        return batch.sequences or (batch.tokens or 0) // self.sequence_length

    @property
    def total_steps(self) -> int:
        """Steps of the whole run: tokens are rounded up to whole steps."""
        duration = self.duration
        return duration.steps or -(-(duration.tokens or 0) // (self.batch_sequences * self.sequence_length))
