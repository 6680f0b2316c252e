"""What a run's resolved specification asks of the trainer, checked; readable without torch.

`read_config(spec)` turns the API form (camelCase keys, defaults filled in) into frozen dataclasses, and
`check_rung(config, rung)` says whether a plan's rung can train it. Both raise `ConfigError` with field,
value and fix. They are called by every rank before anything else, and must never touch a device, a file or
the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.location import path_of
from trainer.errors import ConfigError
from trainingrun.protocol.records import Rung


@dataclass(frozen=True)
class ModelConfig:
    """`transformers_config` goes to transformers as it is; the other fields are what the trainer decides
    by.
    """

    transformers_config: dict[str, Any]
    hidden_size: int
    intermediate_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    positions: int
    tied_embeddings: bool
    vocabulary_size: int | None  # None: only the tokenizer knows


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
class CheckpointConfig:
    location: Path
    memory_interval_steps: int | None  # None: measured; 0: off
    durable_interval_seconds: float | None
    durable_interval_steps: int | None
    keep_last: int | None


@dataclass(frozen=True)
class TrainerConfig:
    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    checkpoint: CheckpointConfig
    precision: str  # FP32 | FP64
    sequence_length: int  # tokens
    global_batch: int  # sequences
    total_steps: int
    training_seed: int
    data_seed: int
    threads_per_process: int
    output: Path  # folder of the exported model


def read_config(spec: dict[str, Any]) -> TrainerConfig:
    training = spec["training"]
    model = _model(spec["model"])
    sequence_length = _positive(training, "sequenceLength", "spec.training")
    if sequence_length > model.positions:
        raise ConfigError(
            "spec.training.sequenceLength",
            sequence_length,
            f"longer than the model's max_position_embeddings = {model.positions}",
            "shorten the sequences or raise spec.model.config.max_position_embeddings",
        )
    if training["precision"] not in ("FP32", "FP64"):
        raise ConfigError(
            "spec.training.precision", training["precision"], "not supported", "use FP32, or FP64 for proofs"
        )
    global_batch = _global_batch(training["globalBatch"], sequence_length)
    resources = spec["resources"]
    _check_devices(resources["perNode"])
    return TrainerConfig(
        model=model,
        optimizer=_optimizer(training["optimizer"]),
        schedule=_schedule(training["schedule"]),
        checkpoint=_checkpoint(spec["checkpoint"]),
        precision=training["precision"],
        sequence_length=sequence_length,
        global_batch=global_batch,
        total_steps=_total_steps(training["duration"], global_batch * sequence_length),
        training_seed=int(training["seed"]),
        data_seed=int(spec["data"]["seed"]),
        threads_per_process=max(
            1, int(_cores(resources["perNode"]["cpu"]) / int(resources["processesPerNode"]))
        ),
        output=path_of(spec["output"]["uri"], "spec.output.uri"),
    )


def _check_devices(per_node: Mapping[str, str]) -> None:
    """Never a silent fall back: what asks for accelerators is not trained on the CPUs beside them."""
    for name in per_node:
        if "/" in name:
            raise ConfigError(
                f"spec.resources.perNode[{name}]",
                per_node[name],
                "this version of the trainer computes on CPUs only",
                "remove it, and set spec.resources.processesPerNode",
            )


def check_rung(config: TrainerConfig, rung: Rung) -> None:
    """Whether `rung` can train `config`: the model divides, and the batch arithmetic closes."""
    model = config.model
    for field, size in (
        ("num_attention_heads", model.attention_heads),
        ("num_key_value_heads", model.key_value_heads),
        ("intermediate_size", model.intermediate_size),
    ):
        _divides("tensor", rung.tensor, f"spec.model.config.{field}", size)
    _divides("pipeline", rung.pipeline, "spec.model.config.num_hidden_layers", model.layers)
    if rung.pipeline > 1 and model.tied_embeddings:
        raise ConfigError(
            "spec.parallelism.axes.pipeline",
            rung.pipeline,
            "tied embeddings would live on the first and the last stage",
            "set pipeline to 1, or spec.model.config.tie_word_embeddings to false",
        )
    if rung.pipeline > rung.accumulation:
        raise ConfigError(
            "rung.accumulation",
            rung.accumulation,
            f"a pipeline of {rung.pipeline} stages needs at least as many micro-batches",
            "use a smaller micro-batch, a larger global batch or fewer stages",
        )
    sequences = rung.data * rung.micro_batch * rung.accumulation - rung.padding_sequences
    if sequences != config.global_batch:
        raise ConfigError(
            "spec.training.globalBatch",
            config.global_batch,
            f"data {rung.data} x micro-batch {rung.micro_batch} x accumulation {rung.accumulation}"
            f" - padding {rung.padding_sequences} = {sequences} sequences",
            "plan again: the rung does not belong to this batch",
        )


def _divides(axis: str, degree: int, field: str, size: int) -> None:
    if size % degree:
        nearest = max(d for d in range(1, degree + 1) if size % d == 0)
        raise ConfigError(
            f"spec.parallelism.axes.{axis}",
            degree,
            f"does not divide {field} = {size} ({size} / {degree} = {size / degree:.2f})",
            f"the nearest that fits is {axis} {nearest}",
        )


def _model(model: dict[str, Any]) -> ModelConfig:
    if model["init"] != "Config":
        raise ConfigError("spec.model.init", model["init"], "not supported by this trainer", "use Config")
    given = model["config"]
    where = "spec.model.config"
    if given.get("model_type") != "llama":
        raise ConfigError(f"{where}.model_type", given.get("model_type"), "not supported", "use llama")
    heads = _positive(given, "num_attention_heads", where)
    hidden = _positive(given, "hidden_size", where)
    if given.get("head_dim") is None and hidden % heads:
        raise ConfigError(
            f"{where}.hidden_size",
            hidden,
            f"not a multiple of num_attention_heads = {heads}",
            f"use {hidden // heads * heads or heads} or {(hidden // heads + 1) * heads}",
        )
    key_value_heads = heads if given.get("num_key_value_heads") is None else given["num_key_value_heads"]
    if not isinstance(key_value_heads, int) or key_value_heads < 1 or heads % key_value_heads:
        raise ConfigError(
            f"{where}.num_key_value_heads",
            key_value_heads,
            f"does not divide num_attention_heads = {heads}",
            "use a divisor of it",
        )
    tokenizer = model.get("tokenizer") or {}
    vocabulary = given.get("vocab_size") or (tokenizer.get("train") or {}).get("vocabularySize")
    return ModelConfig(
        transformers_config=dict(given),
        hidden_size=hidden,
        intermediate_size=_positive(given, "intermediate_size", where),
        layers=_positive(given, "num_hidden_layers", where),
        attention_heads=heads,
        key_value_heads=key_value_heads,
        positions=int(given.get("max_position_embeddings", 2048)),
        tied_embeddings=bool(given.get("tie_word_embeddings", False)),
        vocabulary_size=vocabulary,
    )


def vocabulary_size(config: TrainerConfig, tokenizer_size: int) -> int:
    """Rows of the embedding: as configured, and never fewer than the tokenizer has tokens."""
    wanted = config.model.vocabulary_size
    if wanted is not None and wanted < tokenizer_size:
        raise ConfigError(
            "spec.model.config.vocab_size",
            wanted,
            f"the tokenizer has {tokenizer_size} tokens",
            f"use at least {tokenizer_size}, or leave it out",
        )
    return wanted if wanted is not None else tokenizer_size


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


def _checkpoint(checkpoint: dict[str, Any]) -> CheckpointConfig:
    durable = checkpoint["durable"]
    return CheckpointConfig(
        location=path_of(checkpoint["location"]["uri"]),
        memory_interval_steps=checkpoint["memory"]["intervalSteps"],
        durable_interval_seconds=durable["intervalSeconds"],
        durable_interval_steps=durable["intervalSteps"],
        keep_last=durable["keepLast"],
    )


def _global_batch(batch: dict[str, Any], sequence_length: int) -> int:
    if batch.get("sequences"):
        return int(batch["sequences"])
    tokens = _positive(batch, "tokens", "spec.training.globalBatch")
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
    return math.ceil(_positive(duration, "tokens", "spec.training.duration") / tokens_per_step)


def _cores(quantity: str | int | float) -> float:
    text = str(quantity)
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _positive(mapping: dict[str, Any], key: str, where: str) -> int:
    value = mapping.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{where}.{key}", value, "not a positive whole number", "set it to one")
    return value
