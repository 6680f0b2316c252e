"""Forward and backward of one step's micro-batches, with or without a pipeline.

Leaves gradients that are summed over the micro-batches and over the tensor and shard axes. Data ranks talk
once, in the last micro-batch, whatever the accumulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from trainer.losses import token_loss_sum
from trainer.mesh import Axes
from trainer.stage import Stage
from trainingrun.protocol.records import Rung


class MicroBatch(Protocol):
    """Four int64 tensors `[b, S]`; labels are shifted already, and -100 weighs nothing."""

    @property
    def input_ids(self) -> torch.Tensor: ...
    @property
    def labels(self) -> torch.Tensor: ...
    @property
    def document_ids(self) -> torch.Tensor: ...
    @property
    def position_ids(self) -> torch.Tensor: ...


class Executor:
    def __init__(self, stage: Stage, axes: Axes, rung: Rung, *, sequence_length: int) -> None:
        self._stage = stage
        self._tensor_group = axes.group("tensor")
        columns = vocabulary_columns(stage.config.vocab_size, axes)
        self._first_column = columns.start
        self._weight = 1.0
        self._schedule: Schedule1F1B | None = None
        if rung.pipeline > 1:
            self._schedule = self._pipeline(axes, rung, sequence_length, len(columns))

    def run(self, batches: Sequence[MicroBatch], *, weight: float) -> float:
        """`weight` x the sum of the token losses of `batches`; 0.0 on pipeline stages before the last.

        `weight` is 1 / tokens of the global batch. It scales the loss rather than the gradients, so that
        every rounding in the backward pass is the one of a plain loop that differentiates the mean.
        """
        self._weight = weight
        if self._schedule is not None:
            return self._run_pipeline(self._schedule, batches)
        total = 0.0
        for index, batch in enumerate(batches):
            if isinstance(self._stage, FSDPModule):
                self._stage.set_requires_gradient_sync(index == len(batches) - 1)
            logits = self._stage(batch.input_ids, batch.position_ids, batch.document_ids)
            loss = self._loss(logits, batch.labels)
            loss.backward()
            total += loss.item()
        return total

    def _run_pipeline(self, schedule: Schedule1F1B, batches: Sequence[MicroBatch]) -> float:
        losses: list[torch.Tensor] = []
        arguments: dict[str, Any] = {
            "position_ids": torch.cat([batch.position_ids for batch in batches]),
            "document_ids": torch.cat([batch.document_ids for batch in batches]),
        }
        if self._stage.is_last:
            arguments |= {"target": torch.cat([batch.labels for batch in batches]), "losses": losses}
        inputs = (torch.cat([batch.input_ids for batch in batches]),) if self._stage.is_first else ()
        schedule.step(*inputs, return_outputs=False, **arguments)
        return sum(loss.item() for loss in losses)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = token_loss_sum(logits, labels, group=self._tensor_group, offset=self._first_column)
        return loss * self._weight

    def _pipeline(self, axes: Axes, rung: Rung, sequence_length: int, columns: int) -> Schedule1F1B:
        """Shapes are given, so that the first step need not find them out over the network."""
        shape = (rung.micro_batch, sequence_length)
        dtype = next(self._stage.parameters()).dtype

        def activations(width: int) -> torch.Tensor:
            return torch.empty((*shape, width), dtype=dtype, device="meta", requires_grad=True)

        hidden = activations(self._stage.config.hidden_size)
        stage = PipelineStage(
            self._stage,
            axes.index["pipeline"],
            rung.pipeline,
            torch.device("cpu"),
            input_args=torch.empty(shape, dtype=torch.int64, device="meta")
            if self._stage.is_first
            else hidden,
            output_args=activations(columns) if self._stage.is_last else hidden,
            group=axes.group("pipeline"),
        )
        return Schedule1F1B(stage, n_microbatches=rung.accumulation, loss_fn=self._loss, scale_grads=False)


def vocabulary_columns(vocabulary_size: int, axes: Axes) -> range:
    """Which columns of the logits this tensor rank computes, as DTensor cuts them."""
    chunk = -(-vocabulary_size // axes.degree("tensor"))
    start = min(chunk * axes.index["tensor"], vocabulary_size)
    return range(start, min(start + chunk, vocabulary_size))
