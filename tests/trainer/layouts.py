"""Our trainer's core on a layout of ranks, driven with the data and weights of `parity`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from tests.trainer import parity
from torch.distributed.tensor import DTensor

from trainer.architecture import model_config
from trainer.config import OptimizerConfig
from trainer.engine import Runner
from trainer.executor import Executor
from trainer.initial import fill_initial
from trainer.mesh import Axes, build_axes
from trainer.optim import Optimizer
from trainer.parallelise import parallelise
from trainer.parameters import Parameter, local
from trainer.stage import Stage, build_stages
from trainer.step import StepResult, StepRunner, Votes
from trainingrun.protocol.records import Rung

__all__ = ["a_rung", "build", "initial_weights", "local", "stepped", "train", "trained", "whole"]


def a_rung(
    *,
    pipeline: int = 1,
    replicate: int = 1,
    shard: int = 1,
    context: int = 1,
    tensor: int = 1,
    schedule: str = "1F1B",
    sequence_parallel: bool = False,
    micro_batch: int = 2,
    global_batch: int = 8,
    engine: str = "Native",
    zero_stage: int = 0,
) -> Rung:
    data = replicate * shard
    accumulation = -(-global_batch // (data * micro_batch))
    return Rung(
        nodes=1,
        processes_per_node=pipeline * data * context * tensor,
        pipeline=pipeline,
        replicate=replicate,
        shard=shard,
        tensor=tensor,
        micro_batch=micro_batch,
        accumulation=accumulation,
        padding_sequences=data * micro_batch * accumulation - global_batch,
        state_copies=replicate,
        context=context,
        schedule=schedule,
        sequence_parallel=sequence_parallel,
        engine=engine,
        zero_stage=zero_stage,
    )


def build(
    rank: int,
    rung: Rung,
    model: dict[str, Any],
    dtype: torch.dtype,
    *,
    float64_norms: bool = False,
    seed: int = 5,
) -> tuple[Axes, list[Stage], list[Parameter]]:
    axes = build_axes(rung, rank)
    config = model_config(model, model["vocab_size"])
    stages = build_stages(config, axes, dtype, sequence_length=parity.SEQUENCE, float64_norms=float64_norms)
    parameters = parallelise(stages, axes)
    fill_initial(parameters, config, seed=seed)
    return axes, stages, parameters


def whole(parameter: torch.Tensor) -> torch.Tensor:
    full = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return full.detach().clone()


def train(rank: int, rung: Rung, recipe: parity.Recipe) -> parity.Outcome:
    axes, stages, parameters = build(
        rank, rung, recipe.model, recipe.dtype, float64_norms=recipe.float64_norms
    )
    optimizer = Optimizer(
        parameters,
        OptimizerConfig(
            recipe.learning_rates[0], recipe.betas, recipe.epsilon, recipe.weight_decay, recipe.max_grad_norm
        ),
    )
    executor = Executor(stages, optimizer.parameters, axes, rung, sequence_length=parity.SEQUENCE)
    runner = StepRunner(executor, optimizer, axes, max_grad_norm=recipe.max_grad_norm, seed=1)
    losses, norms = trained(runner, axes, rung, recipe)
    return parity.Outcome(losses, norms, {p.name: whole(p.cut) for p in parameters})


def trained(runner: Runner, axes: Axes, rung: Rung, recipe: parity.Recipe) -> tuple[list[float], list[float]]:
    """(losses, norms of the gradients) by step."""
    rates = recipe.learning_rates[: recipe.steps]
    results = list(stepped(runner, axes, rung, rates, global_batch=recipe.global_batch))
    return [result.loss for result in results], [result.gradient_norm for result in results]


def stepped(
    runner: Runner, axes: Axes, rung: Rung, learning_rates: Sequence[float], *, global_batch: int
) -> Iterator[StepResult]:
    """A step for each learning rate, of any engine, on this rank's share of `parity`'s data."""
    for step, rate in enumerate(learning_rates, 1):
        batches = parity.share(
            step,
            global_batch=global_batch,
            data_rank=axes.data_rank,
            data_degree=axes.data_degree,
            micro_batch=rung.micro_batch,
            accumulation=rung.accumulation,
        )
        yield runner.run(step, batches, learning_rate=rate, votes=Votes())


def initial_weights(rank: int, rung: Rung, model: dict[str, Any]) -> dict[str, torch.Tensor]:
    _, _, parameters = build(rank, rung, model, torch.float32)
    return {p.name: whole(p.cut) for p in parameters}
