"""The trainer builds what the planner plans: 300 random runs, each for real, on ranks of a world that only pretends.

Nothing is trained. A rank's process group answers for the others without sending anything, so a world of any size is
built one rank after the other in this process: the checks of the configuration, mesh, stages, cuts, storage,
optimizer, and the schedule of the pipeline.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch.distributed as dist
from tests.trainer.planned_runs import on_cores, plans
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.architecture import model_config
from trainer.config import TrainerConfig, check_rung, read_config, vocabulary_size
from trainer.eager import ATTENTIONS
from trainer.engine import native
from trainer.mesh import Axes, build_axes
from trainer.stage import Stage
from trainingrun.planner.parameters import stage_parameters
from trainingrun.protocol.records import Rung

SHARES = 10  # tests that share the plans


@contextmanager
def pretended(rank: int, world: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def build(config: TrainerConfig, rung: Rung, rank: int) -> tuple[Axes, int]:
    """Elements of the parameters that this rank holds."""
    axes = build_axes(rung, rank)
    given = config.model.transformers_config
    model = model_config(given, vocabulary_size(config.model, given["vocab_size"]))
    model._attn_implementation = ATTENTIONS[config.training.overrides.attention]
    engine = native(config, model, axes, rung)
    executor = engine.runner._executor  # type: ignore[attr-defined]
    stages: list[Stage] = list(executor._stages)
    assert (executor._schedule is not None) == (rung.pipeline > 1)
    seen = {id(parameter): parameter for stage in stages for parameter in stage.parameters()}
    return axes, sum(parameter.numel() for parameter in seen.values())


def ranks_of(rung: Rung, seed: int) -> list[int]:
    """The first, the last, and one between."""
    return sorted({0, rung.world - 1, random.Random(seed).randrange(rung.world)})


@pytest.mark.parametrize("share", range(SHARES))
def test_every_plan_is_built_by_the_trainer_and_holds_no_more_than_planned(share: int) -> None:
    for number, (seed, spec, model, rung) in enumerate(plans()):
        if number % SHARES != share:
            continue
        config = read_config(on_cores(spec))
        check_rung(config, rung)
        for rank in ranks_of(rung, seed):
            with pretended(rank, rung.world):
                axes, held = build(config, rung, rank)
                head = 0 if rung.schedule == "ZBV" and rung.pipeline > 1 else None
                planned = stage_parameters(
                    model, rung.pipeline, axes.index["pipeline"], rung.tensor, head=head
                )
                assert axes.world == rung.world
                # Cut parameters say their whole size; what is whole on a rank is what it holds.
                if rung.shard == 1:
                    assert held <= planned.total, (seed, rank, rung)
            gc.collect()
