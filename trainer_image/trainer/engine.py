"""What trains: the state of a rank and the step that changes it, behind the same loop, data and checkpoints.

`native` builds ours: FSDP2, tensor parallelism and pipelines. The engine DeepSpeed is built by a package of its own,
which is imported by the ranks of its runs only. Called by `rank.assemble`; both are collective over the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PretrainedConfig

from trainer.checkpoint.flat import FlatPlace
from trainer.config import TrainerConfig
from trainer.ema import Ema
from trainer.executor import Executor, MicroBatch
from trainer.initial import fill_initial
from trainer.mesh import Axes
from trainer.optim import Optimizer
from trainer.parallelise import parallelise
from trainer.precision import PRECISIONS, LossScale
from trainer.recompute import compile_layers, recompute
from trainer.stage import build_stages
from trainer.state import TrainingState
from trainer.step import StepResult, StepRunner, Votes
from trainer.weights import fill_from
from trainer.weights_folder import WeightsFolder
from trainingrun.protocol.records import Rung


class Runner(Protocol):
    def run(
        self, step: int, batches: Sequence[MicroBatch], *, learning_rate: float, votes: Votes
    ) -> StepResult: ...


@dataclass(frozen=True)
class Engine:
    state: TrainingState
    runner: Runner
    fill: Callable[[], None]  # with the weights that step 1 begins with
    flat: Mapping[str, FlatPlace] = field(
        default_factory=dict
    )  # of parameters that the state keeps in flat tensors


def native(config: TrainerConfig, model: PretrainedConfig, axes: Axes, rung: Rung) -> Engine:
    training = config.training
    precision, overrides = PRECISIONS[training.precision], training.overrides
    stages = build_stages(
        model,
        axes,
        precision.compute,
        sequence_length=training.sequence_length,
        float64_norms=training.precision == "FP64",
    )
    recompute(stages, rung.activation_checkpointing)
    if overrides.compile:
        compile_layers(stages)
    optimizer = Optimizer(parallelise(stages, axes, precision), training.optimizer)
    state = TrainingState(
        optimizer,
        ema=Ema(optimizer.parameters, overrides.ema_decay) if overrides.ema_decay is not None else None,
        scale=LossScale(on=precision.scaled),
    )
    executor = Executor(
        stages,
        optimizer.parameters,
        axes,
        rung,
        sequence_length=training.sequence_length,
        z_coefficient=overrides.z_loss,
    )
    runner = StepRunner(
        executor,
        optimizer,
        axes,
        max_grad_norm=training.optimizer.max_grad_norm,
        seed=training.seed,
        scale=state.scale,
    )

    def fill() -> None:
        if config.source is None:
            fill_initial(optimizer.parameters, model, seed=training.seed)
        else:
            fill_from(WeightsFolder(config.source.folder, config.source.uri), optimizer.parameters, model)

    return Engine(state, runner, fill)
