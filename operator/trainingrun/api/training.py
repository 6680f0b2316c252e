"""spec.training: the mathematics of the run. It is the same at every size of the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import ConfigDict, Field, StrictBool

from trainingrun.api.base import Block, counted
from trainingrun.api.cel import at_most_one, exactly_one, rule, rules
from trainingrun.api.errors import FieldError

DECAY_PERMILLE = 100  # of a WSD schedule that does not say


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
    """How gradients change the weights. Weight decay is decoupled in all of them."""

    name: Literal["AdamW", "AdamW8bit", "Lion", "Muon", "Adafactor"] = Field(
        "AdamW",
        description="AdamW; AdamW8bit, whose moments take 1 byte each, in blocks of 256 that tensor parallelism must "
        "not cut; Lion; Muon for hidden matrices with AdamW for the rest; or Adafactor, which keeps almost "
        "no state and whose learning rate is relative to the size of the weights. The others are exact under every "
        "axis.",
    )
    learning_rate: float = Field(ge=1e-12, le=10, description="Peak learning rate.")
    betas: list[float] = Field(
        default=[0.9, 0.95],
        min_length=2,
        max_length=2,
        description="Decay of the two moments, each from 0 to less than 1. For Lion: share of the momentum in the "
        "update, and its decay. Adafactor has none.",
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
    """The learning rate over the run: a linear warm-up, then the shape that `name` says.

    The update of step s, counted from 1, uses rate(s). Warm-up: s / W of the peak for s <= W.
    """

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.name) || self.name == 'WSD' || !(has(self.decayPermille) || has(self.decaySteps))",
                "spec.training.schedule: decayPermille and decaySteps are for WSD only; hint: remove them, or "
                "use name WSD",
            ),
            at_most_one("spec.training.schedule", "decayPermille", "decaySteps"),
            rule(
                "!has(self.name) || self.name != 'WSD' || has(self.warmupSteps) || has(self.decaySteps) || "
                f"self.warmupPermille + (has(self.decayPermille) ? self.decayPermille : {DECAY_PERMILLE}) "
                "<= 1000",
                "spec.training.schedule: warmupPermille + decayPermille is more than 1000, the whole run; "
                "hint: lower one of them",
            ),
        )
    )
    name: Literal["Cosine", "Linear", "WSD", "Constant"] = Field(
        "Cosine",
        description="The shape after the warm-up. Cosine and Linear fall to the minimum at the last step; WSD "
        "stays at the peak and falls linearly over the last decayPermille; Constant stays.",
    )
    warmup_permille: int = Field(
        50, ge=0, le=1000, description="Share of the steps that warm up, in thousandths of the run."
    )
    warmup_steps: int | None = Field(
        None, ge=0, le=10**9, description="Steps that warm up; replaces warmupPermille when it is set."
    )
    decay_permille: int | None = Field(
        None,
        ge=1,
        le=1000,
        description=f"WSD only: share of the steps that decay, in thousandths of the run; {DECAY_PERMILLE} "
        "when left out.",
    )
    decay_steps: int | None = Field(
        None, ge=1, le=10**9, description="WSD only: steps that decay; instead of decayPermille."
    )
    min_learning_rate_permille: int = Field(
        100, ge=0, le=1000, description="Learning rate at the end, in thousandths of the peak."
    )

    def problems(self) -> Iterator[FieldError]:
        for name, value in (("decayPermille", self.decay_permille), ("decaySteps", self.decay_steps)):
            if value is not None and self.name != "WSD":
                yield FieldError(
                    name, value, f"{self.name} has no decay of its own", "remove it, or use name WSD"
                )
        if self.decay_permille is not None and self.decay_steps is not None:
            yield FieldError(
                "decaySteps", self.decay_steps, "decayPermille is set as well", "remove one of them"
            )
        decay = self.decay_permille or DECAY_PERMILLE
        if self.name == "WSD" and self.warmup_steps is None and self.decay_steps is None:
            both = self.warmup_permille + decay
            if both > 1000:
                yield FieldError(
                    "decayPermille",
                    self.decay_permille,
                    f"warm-up {self.warmup_permille} + decay {decay} = {both} thousandths, but the run has 1000",
                    f"decay over at most {1000 - self.warmup_permille}, or warm up over fewer",
                )

    def misfits(self, total_steps: int) -> Iterator[FieldError]:
        """Why warm-up and decay do not fit into a run of `total_steps`, with the equation."""
        warmup = self.warmup_steps
        if warmup is None:
            warmup = total_steps * self.warmup_permille // 1000
        field = "warmupPermille" if self.warmup_steps is None else "warmupSteps"
        if warmup > total_steps:
            yield FieldError(
                f"schedule.{field}",
                warmup,
                f"a warm-up of {warmup} steps is longer than the run of {total_steps} steps",
                f"use at most {total_steps}, or a longer spec.training.duration",
            )
            return
        if self.name != "WSD":
            return
        decay = self.decay_steps
        if decay is None:
            decay = total_steps * (self.decay_permille or DECAY_PERMILLE) // 1000
        if warmup + decay > total_steps:
            yield FieldError(
                f"schedule.{'decayPermille' if self.decay_steps is None else 'decaySteps'}",
                self.decay_permille if self.decay_steps is None else decay,
                f"warm-up {warmup} + decay {decay} = {warmup + decay} steps, but the run has {total_steps}",
                f"decay over at most {total_steps - warmup} steps, or warm up over fewer",
            )


class Overrides(Block):
    """What few runs need; left out, nothing changes."""

    z_loss: float | None = Field(
        None,
        ge=0,
        le=0.999,
        description="Coefficient of the z-loss, the squared logarithm of the softmax's denominator; 1e-4 is usual. "
        "Averaged over the same tokens as the loss, and reported beside it.",
    )
    ema_decay: float | None = Field(
        None,
        ge=0,
        le=0.99999,
        description="Decay of a moving average of the weights, one step an update. The average is exported in place "
        "of the weights.",
    )
    attention: Literal["Auto", "Sdpa", "Eager", "Flash"] = Field(
        "Auto",
        description="Implementation of attention. Auto is Sdpa, torch's fused one; Eager is slow and plain; Flash "
        "needs the package flash-attn in the trainer's image.",
    )
    compile: StrictBool = Field(
        False,
        description="Compile the layers with torch.compile; needs a C++ compiler in the trainer's image.",
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
            ),
            rule(
                "!has(self.duration.steps) || !has(self.schedule.warmupSteps) || "
                "self.schedule.warmupSteps <= self.duration.steps",
                "spec.training.schedule.warmupSteps: the warm-up is longer than the run; hint: lower it",
                "spec.training.schedule.warmupSteps: a warm-up of %d steps is longer than the run of %d "
                "steps; hint: use at most %d",
                "self.schedule.warmupSteps",
                "self.duration.steps",
                "self.duration.steps",
            ),
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
    precision: Literal["BF16", "FP32", "FP16", "FP64"] = Field(
        "FP32",
        description="Floating-point format of the computation. BF16 and FP16 keep weights, sums of gradients and "
        "optimizer in FP32; FP16 scales the loss and skips steps that overflow. FP64 is slow: it is meant "
        "for proofs that two ways of computing agree.",
    )
    optimizer: Optimizer = Field(description="The optimizer.")
    schedule: Schedule = Field(
        default_factory=lambda: Schedule.model_validate({}),
        description="The learning rate over the run.",
        json_schema_extra={"default": {}},
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Seed of the random weights.")
    overrides: Overrides = Field(
        default_factory=lambda: Overrides.model_validate({}),
        description="What few runs need.",
        json_schema_extra={"default": {}},
    )

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
        else:
            yield from self.schedule.misfits(self.total_steps)

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
