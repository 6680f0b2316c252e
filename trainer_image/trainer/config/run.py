"""The whole of a resolved specification: each part read by its own module, and what spans several checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.location import path_of
from trainer.config.checkpoint import CheckpointConfig, read_checkpoint
from trainer.config.data import DataConfig, read_data
from trainer.config.engine import EngineConfig, read_engine
from trainer.config.fields import cores
from trainer.config.model import ModelConfig, read_model
from trainer.config.source import WeightsSource, read_source
from trainer.config.training import TrainingConfig, read_training
from trainer.errors import ConfigError


@dataclass(frozen=True)
class TrainerConfig:
    model: ModelConfig
    source: WeightsSource | None  # None: initial weights are random
    training: TrainingConfig
    data: DataConfig
    checkpoint: CheckpointConfig
    threads_per_process: int
    output: Path  # folder of the exported model
    engine: EngineConfig


def read_config(spec: dict[str, Any]) -> TrainerConfig:
    model = read_model(spec["model"])
    training = read_training(spec["training"])
    if training.sequence_length > model.positions:
        raise ConfigError(
            "spec.training.sequenceLength",
            training.sequence_length,
            f"longer than the model's max_position_embeddings = {model.positions}",
            "shorten the sequences or raise spec.model.config.max_position_embeddings",
        )
    resources = spec["resources"]
    _check_devices(resources["perNode"])
    return TrainerConfig(
        model=model,
        source=read_source(spec["model"]),
        training=training,
        data=read_data(spec["data"], training.total_steps * training.global_batch * training.sequence_length),
        checkpoint=read_checkpoint(spec["checkpoint"]),
        threads_per_process=max(
            1, int(cores(resources["perNode"]["cpu"]) / int(resources["processesPerNode"]))
        ),
        output=path_of(spec["output"]["uri"], "spec.output.uri"),
        engine=read_engine(spec, training),
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
