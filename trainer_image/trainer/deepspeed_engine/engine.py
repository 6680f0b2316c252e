"""Builds the engine DeepSpeed of a rank: the model whole, DeepSpeed around it, and the state in its buffers.

Collective over the default process group, which must exist, also in a world of one. The weights are not yet filled in:
whoever restores or begins does that, through `FlatOptimizer`.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from trainer.config import TrainerConfig
from trainer.deepspeed_engine.flat import Flat, flat_of, places_by_name
from trainer.deepspeed_engine.library import deepspeed
from trainer.deepspeed_engine.optimizer import FlatOptimizer
from trainer.deepspeed_engine.settings import averages, deepspeed_settings
from trainer.deepspeed_engine.step import DeepSpeedStepRunner
from trainer.engine import Engine
from trainer.initial import fill_initial
from trainer.mesh import Axes
from trainer.optim import decays
from trainer.parallelise import give_storage
from trainer.parameters import Parameter, as_they_are
from trainer.precision import PRECISIONS
from trainer.recompute import recompute
from trainer.stage import Stage, build_stages
from trainer.state import TrainingState
from trainer.weights import fill_from
from trainer.weights_folder import WeightsFolder
from trainingrun.protocol.records import Rung


def build(config: TrainerConfig, model: PretrainedConfig, axes: Axes, rung: Rung) -> Engine:
    """`model`: as the rank made it, with its attention chosen."""
    training = config.training
    (stage,) = build_stages(
        model, axes, PRECISIONS[training.precision].compute, sequence_length=training.sequence_length
    )
    recompute([stage], rung.activation_checkpointing)
    give_storage(stage)
    if model.tie_word_embeddings:
        stage.lm_head.weight = stage.embedding.weight
    names = {parameter: name for name, parameter in stage.named_parameters()}
    shapes = {name: tuple(parameter.shape) for parameter, name in names.items()}
    os.environ["LOCAL_RANK"] = str(axes.rank % rung.processes_per_node)  # it takes that from nowhere else
    engine, *_ = deepspeed.initialize(
        model=stage,
        model_parameters=_groups(stage, training.optimizer.weight_decay),
        config=deepspeed_settings(config, rung),
        dist_init_required=False,
    )
    flat: Flat = flat_of(engine.optimizer)
    places = places_by_name(flat, names)
    inner: Any = engine.optimizer.optimizer
    optimizer = FlatOptimizer(flat, inner.state, axes, places, shapes)
    return Engine(
        TrainingState(optimizer),
        DeepSpeedStepRunner(engine, flat, axes, averages=averages(rung), seed=training.seed),
        lambda: optimizer.fill(lambda name, shape: _whole(config, model, name, shape)),
        places,
    )


def _whole(config: TrainerConfig, model: PretrainedConfig, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The parameter that step 1 begins with."""
    whole = torch.empty(shape)
    parameter = Parameter(name, whole, nn.Parameter(whole))
    if config.source is None:
        fill_initial([parameter], model, seed=config.training.seed)
    else:
        fill_from(WeightsFolder(config.source.folder, config.source.uri), [parameter], model)
    return whole


def _groups(stage: Stage, weight_decay: float) -> list[dict[str, Any]]:
    """The parameters that decay, and those that do not: as the engine Native divides them."""
    chosen: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for parameter in as_they_are(stage):
        chosen[decays(parameter)].append(parameter.live)
    groups = [
        {"params": chosen[decayed], "weight_decay": decay}
        for decayed, decay in ((True, weight_decay), (False, 0.0))
    ]
    return [group for group in groups if group["params"]]
