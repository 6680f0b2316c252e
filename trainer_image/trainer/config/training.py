"""`spec.training`: how the weights are changed, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trainer.config.fields import positive
from trainer.config.overrides import Overrides, read_overrides
from trainer.errors import ConfigError

PRECISIONS = ("BF16", "FP32", "FP16", "FP64")
OPTIMIZERS = ("AdamW", "AdamW8bit", "Lion", "Adafactor", "Muon")
SCHEDULES = ("Cosine", "Linear", "WSD", "Constant")
DECAY_PERMILLE = 100  # of a WSD schedule that does not say; as the API has it


@dataclass(frozen=True)
class OptimizerConfig:
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    max_grad_norm: float | None  # None: gradients are not clipped
    name: str = "AdamW"  # one of OPTIMIZERS


@dataclass(frozen=True)
class ScheduleConfig:
    name: str  # Cosine | Linear | WSD | Constant
    warmup_steps: int
    decay_steps: int  # WSD: the last ones of the run; else 0
    min_learning_rate_permille: int


@dataclass(frozen=True)
class TrainingConfig:
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    precision: str  # one of PRECISIONS
    sequence_length: int  # tokens
    global_batch: int  # sequences
    total_steps: int
    seed: int
    overrides: Overrides


def read_training(training: dict[str, Any]) -> TrainingConfig:
    sequence_length = positive(training, "sequenceLength", "spec.training")
    if training["precision"] not in PRECISIONS:
        raise ConfigError(
            "spec.training.precision",
            training["precision"],
            "not supported",
            "use BF16, FP32, FP16, or FP64 for proofs",
        )
    global_batch = _global_batch(training["globalBatch"], sequence_length)
    total_steps = _total_steps(training["duration"], global_batch * sequence_length)
    return TrainingConfig(
        optimizer=_optimizer(training["optimizer"]),
        schedule=_schedule(training["schedule"], total_steps),
        precision=training["precision"],
        sequence_length=sequence_length,
        global_batch=global_batch,
        total_steps=total_steps,
        seed=int(training["seed"]),
        overrides=read_overrides(training.get("overrides") or {}),
    )


def _optimizer(optimizer: dict[str, Any]) -> OptimizerConfig:
    if optimizer["name"] not in OPTIMIZERS:
        raise ConfigError(
            "spec.training.optimizer.name",
            optimizer["name"],
            "not supported",
            f"use one of {', '.join(OPTIMIZERS)}",
        )
    first, second = optimizer["betas"]
    clip = optimizer.get("maxGradNorm")
    return OptimizerConfig(
        learning_rate=float(optimizer["learningRate"]),
        betas=(float(first), float(second)),
        epsilon=float(optimizer["epsilon"]),
        weight_decay=float(optimizer["weightDecay"]),
        max_grad_norm=float(clip) if clip else None,
        name=optimizer["name"],
    )


def _schedule(schedule: dict[str, Any], total_steps: int) -> ScheduleConfig:
    """Warm-up and decay in steps; both are whole steps, rounded down."""
    if schedule["name"] not in SCHEDULES:
        raise ConfigError(
            "spec.training.schedule.name",
            schedule["name"],
            "not a schedule",
            f"use one of: {', '.join(SCHEDULES)}",
        )
    where, wsd = "spec.training.schedule", schedule["name"] == "WSD"
    warmup_field, warmup = _steps(schedule, "warmup", total_steps, default=0)
    if warmup > total_steps:
        raise ConfigError(
            f"{where}.{warmup_field}",
            schedule[warmup_field],
            f"a warm-up of {warmup} steps is longer than the run of {total_steps} steps",
            f"warm up over at most {total_steps} steps, or raise spec.training.duration",
        )
    decay_field, decay = _steps(schedule, "decay", total_steps, default=DECAY_PERMILLE if wsd else 0)
    if decay and not wsd:
        raise ConfigError(
            f"{where}.{decay_field}", decay, f"{schedule['name']} has no decay of its own", "remove it"
        )
    if warmup + decay > total_steps:
        raise ConfigError(
            f"{where}.{decay_field}",
            schedule.get(decay_field),
            f"warm-up {warmup} + decay {decay} = {warmup + decay} steps, but the run has {total_steps}",
            f"decay over at most {total_steps - warmup} steps, or warm up over fewer",
        )
    return ScheduleConfig(
        name=schedule["name"],
        warmup_steps=warmup,
        decay_steps=decay,
        min_learning_rate_permille=int(schedule["minLearningRatePermille"]),
    )


def _steps(schedule: dict[str, Any], phase: str, total_steps: int, *, default: int) -> tuple[str, int]:
    """(field that says it, steps) of a phase: in steps, or else in thousandths of the run."""
    if schedule.get(f"{phase}Steps") is not None:
        return f"{phase}Steps", int(schedule[f"{phase}Steps"])
    permille = schedule.get(f"{phase}Permille")
    return f"{phase}Permille", total_steps * int(default if permille is None else permille) // 1000


def _global_batch(batch: dict[str, Any], sequence_length: int) -> int:
    if batch.get("sequences"):
        return int(batch["sequences"])
    tokens = positive(batch, "tokens", "spec.training.globalBatch")
    if tokens % sequence_length:
        below = tokens // sequence_length * sequence_length
        raise ConfigError(
            "spec.training.globalBatch.tokens",
            tokens,
            f"not a multiple of sequenceLength = {sequence_length}",
            f"use {below + sequence_length}" + (f" or {below}" if below else ""),
        )
    return tokens // sequence_length


def _total_steps(duration: dict[str, Any], tokens_per_step: int) -> int:
    """Steps as given, or as many whole steps as it takes to read at least `tokens`."""
    if duration.get("steps"):
        return int(duration["steps"])
    return math.ceil(positive(duration, "tokens", "spec.training.duration") / tokens_per_step)
