"""Forward and backward of one step's micro-batches, with or without a pipeline.

Leaves gradients that are summed over the micro-batches and over the shard axis (`gradients.py` does the rest).
Data ranks talk once, in the last micro-batch, whatever the accumulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from trainer.losses import in_full_precision, token_loss_sum
from trainer.mesh import Axes
from trainer.parameters import Parameter
from trainer.stage import Stage
from trainer.z_loss import z_loss_sum
from trainingrun.protocol.records import Rung

Schedule = Schedule1F1B | ScheduleInterleaved1F1B | ScheduleZBVZeroBubble


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
    def __init__(
        self,
        stages: Sequence[Stage],
        parameters: Sequence[Parameter],
        axes: Axes,
        rung: Rung,
        *,
        sequence_length: int,
        z_coefficient: float = 0.0,
    ) -> None:
        self._stages = stages
        self._mirrored = [parameter for parameter in parameters if parameter.mirror is not None]
        self._tensor_group = axes.group("tensor")
        self._rows = axes.tokens_of(sequence_length)
        self._columns = vocabulary_columns(stages[0].config.vocab_size, axes)
        self._weight = 1.0
        self._z_coefficient = z_coefficient
        self._losses: list[torch.Tensor] = []
        self._z_losses: list[torch.Tensor] = []
        self._schedule: Schedule | None = None
        if rung.pipeline > 1:
            self._schedule = self._pipeline(axes, rung)

    def run(self, batches: Sequence[MicroBatch], *, weight: float) -> tuple[float, float]:
        """`weight` x the sum of the token losses of this rank's tokens of `batches`, and of their z-losses; 0.0
        without the last stage.

        `weight` is 1 / tokens of the global batch. It scales the loss rather than the gradients, so that
        every rounding in the backward pass is the one of a plain loop that differentiates the mean.
        """
        self._weight = weight
        for parameter in self._mirrored:
            parameter.refresh()
        self._losses, self._z_losses = [], []
        if self._schedule is not None:
            self._run_pipeline(self._schedule, batches)
        else:
            self._run_stage(batches)
        return sum(loss.item() for loss in self._losses), sum(loss.item() for loss in self._z_losses)

    def _run_stage(self, batches: Sequence[MicroBatch]) -> None:
        (stage,) = self._stages
        for index, batch in enumerate(batches):
            if isinstance(stage, FSDPModule):
                stage.set_requires_gradient_sync(index == len(batches) - 1)
            # No name for the logits: it would keep them until the next micro-batch has its own.
            self._loss(
                stage(self._mine(batch.input_ids), self._mine(batch.position_ids), batch.document_ids),
                self._mine(batch.labels),
            ).backward()

    def _mine(self, whole: torch.Tensor) -> torch.Tensor:
        """This rank's tokens of each sequence."""
        return whole[:, self._rows]

    def _run_pipeline(self, schedule: Schedule, batches: Sequence[MicroBatch]) -> None:
        arguments: dict[str, Any] = {
            "position_ids": torch.cat([self._mine(batch.position_ids) for batch in batches]),
            "document_ids": torch.cat([batch.document_ids for batch in batches]),
        }
        inputs: tuple[torch.Tensor, ...] = ()
        if self._stages[-1].is_last:
            target = torch.cat([self._mine(batch.labels) for batch in batches])
            arguments |= {"target": target, "losses": []}
        if self._stages[0].is_first:
            inputs = (torch.cat([self._mine(batch.input_ids) for batch in batches]),)
        schedule.step(*inputs, return_outputs=False, **arguments)

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = in_full_precision(logits)
        loss = token_loss_sum(
            logits,
            labels,
            group=self._tensor_group,
            offset=self._columns.start,
            consume=not self._z_coefficient,
        )
        loss = loss * self._weight
        self._losses.append(loss.detach())
        if self._z_coefficient:
            z_loss = z_loss_sum(logits, labels, group=self._tensor_group) * (
                self._z_coefficient * self._weight
            )
            self._z_losses.append(z_loss.detach())
            loss = loss + z_loss
        return loss

    def _pipeline(self, axes: Axes, rung: Rung) -> Schedule:
        pipe = [self._pipe(stage, number, axes, rung) for stage, number in self._numbered(axes)]
        options: dict[str, Any] = {
            "n_microbatches": rung.accumulation,
            "loss_fn": self._loss,
            "scale_grads": False,
        }
        match rung.schedule:
            case "Interleaved1F1B":
                return ScheduleInterleaved1F1B(pipe, **options)
            case "ZBV":
                return ScheduleZBVZeroBubble(pipe, **options)
            case _:
                return Schedule1F1B(pipe[0], **options)

    def _numbered(self, axes: Axes) -> list[tuple[Stage, int]]:
        return list(zip(self._stages, axes.stages, strict=True))

    def _pipe(self, stage: Stage, number: int, axes: Axes, rung: Rung) -> PipelineStage:
        """Shapes are given, so that the first step need not find them out over the network."""
        tokens = self._rows.stop - self._rows.start
        between = tokens // rung.tensor if axes.sequence_parallel else tokens
        dtype = stage.compute_dtype

        def activations(length: int, width: int) -> torch.Tensor:
            shape = (rung.micro_batch, length, width)
            return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)

        ids = torch.empty((rung.micro_batch, tokens), dtype=torch.int64, device="meta")
        hidden = activations(between, stage.config.hidden_size)
        return PipelineStage(
            stage,
            number,
            axes.stage_count,
            torch.device("cpu"),
            input_args=ids if stage.is_first else hidden,
            output_args=activations(tokens, len(self._columns)) if stage.is_last else hidden,
            group=axes.group("pipeline"),
        )


def vocabulary_columns(vocabulary_size: int, axes: Axes) -> range:
    """Which columns of the logits this tensor rank computes, as DTensor cuts them."""
    chunk = -(-vocabulary_size // axes.degree("tensor"))
    start = min(chunk * axes.index["tensor"], vocabulary_size)
    return range(start, min(start + chunk, vocabulary_size))
