"""The trainer's own model, optimizer and steps on one rank, with its tensors counted by part.

What a rank builds (`trainer.engine`) is built as `trainer.rank` does it, on made-up tokens; then some steps are
trained. Weights and optimizer are counted as they are built, gradients as the optimizer gets them; activations are
the most that all other tensors together ever took. Called in a world of gloo that is already joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.memory.live import LiveBytes
from benchmarks.memory.part_cases import PartCase
from trainer import step as step_module
from trainer.architecture import model_config
from trainer.config import TrainerConfig, check_rung, read_config, vocabulary_size
from trainer.eager import ATTENTIONS
from trainer.engine import Engine, native
from trainer.mesh import Axes, build_axes
from trainer.parameters import Parameter, local
from trainer.step import Votes
from trainingrun.protocol.records import Rung

STEPS = 2
WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"


@dataclass(frozen=True)
class Allocated:
    """Bytes of one rank."""

    pipeline_rank: int
    weights: int
    gradients: int
    optimizer: int
    activations: int  # all else at the fullest moment: logits, gathered weights and buffers too
    peak: int  # the most of all together


@dataclass(frozen=True)
class _Batch:
    input_ids: torch.Tensor
    labels: torch.Tensor
    document_ids: torch.Tensor
    position_ids: torch.Tensor


def measure(rank: int, case: PartCase) -> Allocated:
    """Collective."""
    config, rung = read_config(case.spec()), case.rung
    check_rung(config, rung)
    gradients: list[int] = []
    with LiveBytes() as live:
        axes = build_axes(rung, rank)
        engine = _engine(config, axes, rung)
        engine.fill()
        engine.state.optimizer.refresh()
        parameters = engine.state.optimizer.parameters
        live.belongs(WEIGHTS, _weights(parameters))
        live.belongs(OPTIMIZER, _kept(engine))
        live.look = lambda: _gradients(parameters)
        live.begin()
        collect = step_module.collect_gradients

        def collected(*given: object) -> list[torch.Tensor]:
            found = collect(*given)  # type: ignore[arg-type]
            live.belongs(GRADIENTS, found)
            gradients.append(live.part(GRADIENTS))
            return found

        step_module.collect_gradients = collected
        try:
            for step in range(1, STEPS + 1):
                batches = [_batch(case, config, step) for _ in range(rung.accumulation)]
                engine.runner.run(step, batches, learning_rate=1e-4, votes=Votes())
        finally:
            step_module.collect_gradients = collect
        weights, own, kept = live.part(WEIGHTS), max(gradients), live.part(OPTIMIZER)
        peak = sum(live.peak.values())
        # A single micro-batch's gradients come only as activations go.
        rest = live.most_rest if rung.accumulation == 1 else peak - weights - own - kept
        return Allocated(axes.index["pipeline"], weights, own, kept, rest, peak)


def _engine(config: TrainerConfig, axes: Axes, rung: Rung) -> Engine:
    given = config.model.transformers_config
    model = model_config(given, vocabulary_size(config.model, given["vocab_size"]))
    model._attn_implementation = ATTENTIONS[config.training.overrides.attention]
    return native(config, model, axes, rung)


def _weights(parameters: list[Parameter]) -> Iterator[torch.Tensor]:
    for parameter in parameters:
        yield from (parameter.cut, parameter.live.detach())
        if parameter.mirror is not None:
            yield parameter.mirror.detach()


def _kept(engine: Engine) -> Iterator[torch.Tensor]:
    yield from engine.state.optimizer.moments().values()
    if engine.state.ema is not None:
        yield from engine.state.ema.tensors().values()


def _gradients(parameters: list[Parameter]) -> Iterator[tuple[str, torch.Tensor]]:
    for parameter in parameters:
        for live in (parameter.live, parameter.mirror):
            if live is not None and live.grad is not None:
                yield GRADIENTS, local(live.grad)
        for wide in parameter.wide:
            if wide._sum is not None:
                yield GRADIENTS, wide._sum


def _batch(case: PartCase, config: TrainerConfig, step: int) -> _Batch:
    """Two documents in each sequence."""
    rows, length = case.micro_batch, case.sequence_length
    draw = torch.Generator().manual_seed(step)
    ids = torch.randint(case.model["vocab_size"], (rows, length + 1), generator=draw)
    documents = (torch.arange(length) >= length // 2).long().expand(rows, length).contiguous()
    positions = torch.arange(length) % (length // 2)
    return _Batch(
        ids[:, :-1].contiguous(),
        ids[:, 1:].contiguous(),
        documents,
        positions.expand(rows, length).contiguous(),
    )
