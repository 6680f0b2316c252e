"""`spec.training`: how the weights are changed, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from trainer.config.fields import positive
from trainer.errors import ConfigError


@dataclass(frozen=True)
class OptimizerConfig:
    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    max_grad_norm: float | None  # None: gradients are not clipped


@dataclass(frozen=True)
class ScheduleConfig:
    name: str  # Cosine | Constant
    warmup_permille: int
    min_learning_rate_permille: int


@dataclass(frozen=True)
class TrainingConfig:
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    precision: str  # FP32 | FP64
    sequence_length: int  # tokens
    global_batch: int  # sequences
    total_steps: int
    seed: int


def read_training(training: dict[str, Any]) -> TrainingConfig:
    sequence_length = positive(training, "sequenceLength", "spec.training")
    if training["precision"] not in ("FP32", "FP64"):
        raise ConfigError(
            "spec.training.precision", training["precision"], "not supported", "use FP32, or FP64 for proofs"
        )
    global_batch = _global_batch(training["globalBatch"], sequence_length)
    return TrainingConfig(
        optimizer=_optimizer(training["optimizer"]),
        schedule=_schedule(training["schedule"]),
        precision=training["precision"],
        sequence_length=sequence_length,
        global_batch=global_batch,
        total_steps=_total_steps(training["duration"], global_batch * sequence_length),
        seed=int(training["seed"]),
    )


def _optimizer(optimizer: dict[str, Any]) -> OptimizerConfig:
    if optimizer["name"] != "AdamW":
        raise ConfigError("spec.training.optimizer.name", optimizer["name"], "not supported", "use AdamW")
    first, second = optimizer["betas"]
    clip = optimizer.get("maxGradNorm")
    return OptimizerConfig(
        learning_rate=float(optimizer["learningRate"]),
        betas=(float(first), float(second)),
        epsilon=float(optimizer["epsilon"]),
        weight_decay=float(optimizer["weightDecay"]),
        max_grad_norm=float(clip) if clip else None,
    )


def _schedule(schedule: dict[str, Any]) -> ScheduleConfig:
    if schedule["name"] not in ("Cosine", "Constant"):
        raise ConfigError(
            "spec.training.schedule.name", schedule["name"], "not supported", "use Cosine or Constant"
        )
    return ScheduleConfig(
        name=schedule["name"],
        warmup_permille=int(schedule["warmupPermille"]),
        min_learning_rate_permille=int(schedule["minLearningRatePermille"]),
    )


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
