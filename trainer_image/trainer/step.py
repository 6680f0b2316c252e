"""One optimizer step: count the tokens, forward and backward, gradients of the global batch, agree, update.

Each token weighs 1 / tokens of the whole global batch, wherever it is computed. One small all-reduce after
the backward pass carries everything that the ranks must agree on: the loss, the gradient norm, and the
votes for what happens after the step (pause, snapshot, durable checkpoint). No rank changes its weights
before it has passed. A gradient that overflowed under a loss scale is no error: the weights stay, the scale is
halved, and the data goes on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainer.clip import clip_coefficient, holders, squared_norm_share
from trainer.errors import TrainingDiverged
from trainer.executor import Executor, MicroBatch
from trainer.gradients import collect_gradients
from trainer.losses import IGNORED
from trainer.mesh import Axes
from trainer.optim import Optimizer
from trainer.precision import LossScale

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Votes:
    """What this rank wants to happen after the step. One vote is enough for all ranks to do it."""

    pause: bool = False
    snapshot: bool = False
    durable: bool = False
    snapshot_seconds: float = 0.0  # what this rank's newest snapshot took; agreed as the mean over ranks
    copied: int = 0  # nodes that have their buddy's part of the newest snapshot: 1 or 0; agreed as the sum
    not_copied: int = 0  # ... that cannot get it

    def numbers(self, world: int) -> tuple[float, ...]:
        """What this rank adds to the step's sum over all ranks."""
        asked = (float(self.pause), float(self.snapshot), float(self.durable))
        return (*asked, self.snapshot_seconds / world, float(self.copied), float(self.not_copied))

    @classmethod
    def agreed(cls, sums: Sequence[float]) -> Votes:
        pause, snapshot, durable, seconds, copied, not_copied = sums
        return cls(pause > 0, snapshot > 0, durable > 0, seconds, round(copied), round(not_copied))


@dataclass(frozen=True)
class StepResult:
    """The same on every rank."""

    loss: float  # mean over the tokens that weigh; 0.0 when none does
    tokens: int  # that weigh, in the global batch
    gradient_norm: float  # before clipping
    updated: bool  # False: no token weighed or a gradient overflowed, nothing was changed
    agreed: Votes
    z_loss: float = 0.0  # mean over the same tokens; not in `loss`
    overflowed: bool = False  # under a loss scale


class StepRunner:
    def __init__(
        self,
        executor: Executor,
        optimizer: Optimizer,
        axes: Axes,
        *,
        max_grad_norm: float | None,
        seed: int,
        scale: LossScale | None = None,
    ) -> None:
        self._executor = executor
        self._optimizer = optimizer
        self._axes = axes
        self._max_grad_norm = max_grad_norm
        self._seed = seed
        self._scale = scale or LossScale(on=False)
        # Each data rank's loss and tokens count once, though every tensor rank and stage knows them. The ranks of
        # a context group know the same tokens, and each the loss of its own.
        self._counts = axes.last_stage and axes.index["tensor"] == 0
        self._counts_tokens = self._counts and axes.index["context"] == 0
        # Both ends of a pipeline hold a tied embedding.
        self._holders = [p.stages * holders(p.cut, axes) for p in optimizer.parameters]

    def run(
        self, step: int, batches: Sequence[MicroBatch], *, learning_rate: float, votes: Votes
    ) -> StepResult:
        """Collective. Raises TrainingDiverged on every rank when the loss or the gradient is not finite."""
        # torch.manual_seed looks for accelerators each time, for a third of a millisecond.
        torch.default_generator.manual_seed(hash((self._seed, step, self._axes.dropout_index)))
        tokens = self._count_tokens(batches)
        loss = z_loss = squared_norm = 0.0
        gradients: list[torch.Tensor] = []
        if tokens:
            loss, z_loss = self._executor.run(batches, weight=self._scale.value / tokens)
            gradients = collect_gradients(self._optimizer.parameters, self._axes)
            squared_norm = squared_norm_share(gradients, self._holders)
        loss, z_loss, squared_norm, *asked = self._sum(
            loss if self._counts else 0.0,
            z_loss if self._counts else 0.0,
            squared_norm,
            *votes.numbers(self._axes.world),
        )
        agreed = Votes.agreed(asked)
        if not tokens:
            log.warning("step %d: no token of the global batch weighs anything; no update", step)
            return StepResult(0.0, 0, 0.0, False, agreed)
        norm = math.sqrt(squared_norm) if squared_norm >= 0 else math.nan
        loss, z_loss, norm = (value / self._scale.value for value in (loss, z_loss, norm))
        if self._scale.on and math.isfinite(loss) and not math.isfinite(norm) and not self._scale.exhausted:
            self._scale.overflowed()
            log.warning("step %d: a gradient overflowed; no update, loss scale %g", step, self._scale.value)
            return StepResult(loss, tokens, 0.0, False, agreed, z_loss, overflowed=True)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingDiverged(
                f"step {step}: loss {loss}, gradient norm {norm}: not finite. "
                f"Fix: lower spec.training.optimizer.learningRate (now {learning_rate:g}), "
                + ("use precision BF16, " if self._scale.on else "")
                + "or look at the data of this step"
            )
        coefficient = clip_coefficient(norm, self._max_grad_norm)
        self._optimizer.update(gradients, scale=coefficient / self._scale.value, learning_rate=learning_rate)
        self._scale.passed()
        return StepResult(loss, tokens, norm, True, agreed, z_loss)

    def _count_tokens(self, batches: Sequence[MicroBatch]) -> int:
        """Tokens of the global batch that weigh. Needed before the backward pass: see `Executor.run`."""
        mine = sum(int((batch.labels != IGNORED).sum()) for batch in batches)
        return round(self._sum(float(mine) if self._counts_tokens else 0.0)[0])

    def _sum(self, *values: float) -> list[float]:
        shared = torch.tensor(values, dtype=torch.float64)
        if self._axes.world > 1:
            dist.all_reduce(shared)
        return shared.tolist()
