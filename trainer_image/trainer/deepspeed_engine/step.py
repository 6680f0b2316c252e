"""One optimizer step of the engine DeepSpeed, with the arithmetic and the protocol of `trainer.step`.

Each token weighs 1 / tokens of the whole global batch. DeepSpeed would divide by the number of micro-batches, and at
ZeRO 3 divides by the number of ranks: the first is switched off, the second is put into the weight. The norm is taken
from what each rank keeps of the gradients, and travels in the step's one small all-reduce; only then DeepSpeed clips
and updates, so no rank changes its weights before all have agreed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainer.deepspeed_engine.flat import Flat
from trainer.errors import TrainingDiverged
from trainer.executor import MicroBatch
from trainer.losses import IGNORED, in_full_precision, token_loss_sum
from trainer.mesh import Axes
from trainer.step import StepResult, Votes

log = logging.getLogger(__name__)


class DeepSpeedStepRunner:
    def __init__(self, engine: Any, flat: Flat, axes: Axes, *, averages: bool, seed: int) -> None:
        self._engine = engine
        self._flat = flat
        self._axes = axes
        self._factor = axes.world if averages else 1
        self._seed = seed

    def run(
        self, step: int, batches: Sequence[MicroBatch], *, learning_rate: float, votes: Votes
    ) -> StepResult:
        """Collective. Raises TrainingDiverged on every rank when the loss or the gradient is not finite."""
        torch.manual_seed(hash((self._seed, step, self._axes.dropout_index)))
        tokens = round(self._sum(float(sum(int((b.labels != IGNORED).sum()) for b in batches)))[0])
        loss = squared_norm = 0.0
        if tokens:
            loss = self._forward_and_backward(batches, weight=self._factor / tokens) / self._factor
            squared_norm = _squared_norm(self._flat.gradients())
        loss, squared_norm, *asked = self._sum(loss, squared_norm, *votes.numbers(self._axes.world))
        agreed = Votes.agreed(asked)
        if not tokens:
            log.warning("step %d: no token of the global batch weighs anything; no update", step)
            return StepResult(0.0, 0, 0.0, False, agreed)
        norm = math.sqrt(squared_norm) if squared_norm >= 0 else math.nan
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingDiverged(
                f"step {step}: loss {loss}, gradient norm {norm}: not finite. "
                f"Fix: lower spec.training.optimizer.learningRate (now {learning_rate:g}), "
                "or look at the data of this step"
            )
        self._update(step, learning_rate)
        return StepResult(loss, tokens, norm, True, agreed)

    def _forward_and_backward(self, batches: Sequence[MicroBatch], *, weight: float) -> float:
        """`weight` x the sum of this rank's token losses; leaves the gradients of the global batch."""
        losses = []
        for index, batch in enumerate(batches):
            self._engine.set_gradient_accumulation_boundary(index == len(batches) - 1)
            logits = self._engine(batch.input_ids, batch.position_ids, batch.document_ids)
            loss = token_loss_sum(in_full_precision(logits), batch.labels) * weight
            losses.append(loss.detach())
            self._engine.backward(loss, scale_wrt_gas=False)
        return sum(loss.item() for loss in losses)

    def _update(self, step: int, learning_rate: float) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        if not self._engine.was_step_applied():
            raise TrainingDiverged(
                f"step {step}: DeepSpeed found a gradient that is not finite, and made no update"
            )

    def _sum(self, *values: float) -> list[float]:
        shared = torch.tensor(values, dtype=torch.float64)
        if self._axes.world > 1:
            dist.all_reduce(shared)
        return shared.tolist()


def _squared_norm(gradients: Sequence[torch.Tensor]) -> float:
    """Summed in float64: a flat buffer is too long for float32."""
    return sum(float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in gradients)
