"""The trainer's core on a layout of ranks, with any precision, optimizer and override; the data of `parity`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tests.trainer import layouts, parity

from trainer.architecture import model_config
from trainer.config import OptimizerConfig
from trainer.eager import ATTENTIONS
from trainer.ema import Ema
from trainer.executor import Executor
from trainer.initial import fill_initial
from trainer.mesh import build_axes
from trainer.optim import Optimizer
from trainer.parallelise import parallelise
from trainer.precision import PRECISIONS, LossScale
from trainer.recompute import compile_layers, recompute
from trainer.stage import build_stages
from trainer.state import TrainingState
from trainer.step import StepRunner
from trainingrun.protocol.records import Rung

OPTIMIZER = OptimizerConfig(
    learning_rate=3e-3, betas=(0.9, 0.95), epsilon=1e-8, weight_decay=0.1, max_grad_norm=1.0
)


@dataclass(frozen=True)
class Setting:
    precision: str = "FP64"
    optimizer: str = "AdamW"
    activations: str = "None"
    attention: str = "Sdpa"
    compile: bool = False
    z_loss: float = 0.0
    ema_decay: float | None = None
    steps: int = 5
    model: dict[str, Any] = field(default_factory=parity.tiny_model)


@dataclass(frozen=True)
class Seen:
    """What a rank saw; tensors are whole."""

    losses: list[float]
    norms: list[float]
    z_losses: list[float]
    updates: list[bool]
    weights: dict[str, torch.Tensor]
    averages: dict[str, torch.Tensor]
    dtypes: dict[str, set[torch.dtype]]


def train(rank: int, rung: Rung, setting: Setting) -> Seen:
    axes = build_axes(rung, rank)
    precision = PRECISIONS[setting.precision]
    config = model_config(setting.model, parity.VOCABULARY)
    config._attn_implementation = ATTENTIONS[setting.attention]
    stages = build_stages(
        config,
        axes,
        precision.compute,
        sequence_length=parity.SEQUENCE,
        float64_norms=setting.precision == "FP64",
    )
    recompute(stages, setting.activations)
    if setting.compile:
        compile_layers(stages)
    parameters = parallelise(stages, axes, precision)
    optimizer = Optimizer(parameters, replace(OPTIMIZER, name=setting.optimizer))
    ema = Ema(parameters, setting.ema_decay) if setting.ema_decay is not None else None
    state = TrainingState(optimizer, ema=ema, scale=LossScale(on=precision.scaled))
    fill_initial(parameters, config, seed=5)
    state.filled(initial=True)
    executor = Executor(
        stages, parameters, axes, rung, sequence_length=parity.SEQUENCE, z_coefficient=setting.z_loss
    )
    runner = StepRunner(
        executor, optimizer, axes, max_grad_norm=OPTIMIZER.max_grad_norm, seed=1, scale=state.scale
    )
    results = []
    rates = [OPTIMIZER.learning_rate] * setting.steps
    for result in layouts.stepped(runner, axes, rung, rates, global_batch=8):
        state.advance(result, learning_rate=OPTIMIZER.learning_rate, samples=8)
        results.append(result)
    return Seen(
        losses=[result.loss for result in results],
        norms=[result.gradient_norm for result in results],
        z_losses=[result.z_loss for result in results],
        updates=[result.updated for result in results],
        weights={p.name: layouts.whole(p.cut) for p in parameters},
        averages={name: layouts.whole(t) for name, t in (ema.tensors() if ema else {}).items()},
        dtypes={
            "live": {p.live.dtype for p in parameters},
            "kept": {tensor.dtype for tensor in state.tensors().values()},
            "computed": {stage.compute_dtype for stage in stages},
        },
    )


def furthest(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Largest difference of tensors of the same names."""
    return max(float((a[name] - b[name]).abs().max()) for name in a.keys() & b.keys())
