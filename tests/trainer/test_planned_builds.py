"""The trainer builds what the planner plans: 300 random runs, each for real, on ranks of a world that only pretends.

Nothing is trained. A rank's process group answers for the others without sending anything, so a world of any size is
built one rank after the other in this process: the checks of the configuration, mesh, stages, cuts, storage,
optimizer, and the schedule of the pipeline.
"""

from __future__ import annotations

import functools
import gc
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from trainer.architecture import model_config
from trainer.config import TrainerConfig, check_rung, read_config, vocabulary_size
from trainer.eager import ATTENTIONS
from trainer.engine import native
from trainer.mesh import Axes, build_axes
from trainer.stage import Stage
from trainingrun.planner.errors import PlanError
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.parameters import stage_parameters
from trainingrun.planner.search import plan
from trainingrun.planner.types import ModelShape
from trainingrun.protocol.records import Rung

GOLDEN = Path(__file__).parent.parent / "golden" / "resolved-spec.json"
GPU = "NVIDIA-H100-80GB-HBM3"
PLANS, SHARES = 300, 10  # plans in all, and tests that share them
MOST_RANKS = 64  # of a world that is built
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gpt2")


def a_run(seed: int) -> dict[str, Any]:
    """A resolved spec of a small model; the same for the same seed. Not each of them can be planned."""
    draw = random.Random(seed)
    spec: dict[str, Any] = json.loads(GOLDEN.read_text())
    kind = draw.choice(FAMILIES)
    heads = draw.choice([2, 4, 6, 8])
    config: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": 16 * heads,
        "intermediate_size": draw.choice([96, 128, 192]),
        "num_hidden_layers": draw.choice([1, 2, 4, 6, 8]),
        "num_attention_heads": heads,
        "max_position_embeddings": 256,
        "vocab_size": draw.choice([250, 256, 1001]),
    }
    if kind != "gpt2":
        config["num_key_value_heads"] = draw.choice([one for one in (1, 2, 3, 4, 6, 8) if heads % one == 0])
        config["head_dim"] = 16
        config["tie_word_embeddings"] = draw.random() < 0.5
    spec["model"]["config"] = config
    training = spec["training"]
    training["sequenceLength"] = draw.choice([32, 64, 96])
    training["globalBatch"] = {"tokens": None, "sequences": draw.choice([4, 12, 16, 32, 64])}
    training["precision"] = draw.choice(["FP32", "FP32", "BF16", "FP64"])
    training["optimizer"]["name"] = draw.choice(["AdamW", "AdamW", "Lion", "Muon", "Adafactor", "AdamW8bit"])
    least = draw.choice([1, 1, 2, 3])
    spec["scale"] |= {"minNodes": least, "maxNodes": least + draw.choice([0, 1, 3])}
    accelerated = draw.random() < 0.3
    memory = draw.choice(["600Mi", "1Gi", "4Gi"])
    processes = draw.choice([1, 2, 4, 6, 8])
    spec["resources"] = {"perNode": {"cpu": "8", "memory": memory}, "processesPerNode": processes}
    if accelerated:
        spec["resources"] = {
            "perNode": {"cpu": "8", "memory": "900Gi", "nvidia.com/gpu": str(draw.choice([1, 2, 4, 8]))},
            "processesPerNode": None,
        }
    axes: dict[str, int | None] = {"tensor": None, "pipeline": None, "context": None}
    for axis in axes:
        if draw.random() < 0.35:
            axes[axis] = draw.choice([1, 2, 2, 4])
    spec["parallelism"] |= {
        "axes": axes,
        "pipelineSchedule": draw.choice(["Auto", "1F1B", "Interleaved1F1B", "ZBV"]),
        "sequenceParallel": draw.random() < 0.3,
        "activationCheckpointing": draw.choice(["Auto", "None", "Selective", "Full"]),
    }
    return spec


@functools.cache
def plans() -> tuple[tuple[int, dict[str, Any], ModelShape, Rung], ...]:
    """(seed, spec, model, rung) of runs that can be planned, on one of their useful sizes."""
    found: list[tuple[int, dict[str, Any], ModelShape, Rung]] = []
    seed = 0
    while len(found) < PLANS:
        seed += 1
        spec = a_run(seed)
        try:
            model, training, inventory = planner_inputs(spec, accelerator_name=GPU)
            path = plan(model, training, inventory)
        except PlanError:
            continue
        useful = [planned.rung for planned in path.rungs if planned.rung.useful]
        small = [rung for rung in useful if rung.world <= MOST_RANKS]
        if small:
            found.append((seed, spec, model, random.Random(seed).choice(small)))
    return tuple(found)


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
        config = read_config(spec)
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


def test_the_plans_are_of_every_kind() -> None:
    """Else the test above says little."""
    rungs = [rung for _, _, _, rung in plans()]
    assert len(rungs) == PLANS
    for axis in ("tensor", "pipeline", "shard", "replicate", "context"):
        assert sum(getattr(rung, axis) > 1 for rung in rungs) >= PLANS // 20, axis
    assert {rung.schedule for rung in rungs} == {"1F1B", "Interleaved1F1B", "ZBV"}
    assert {rung.activation_checkpointing for rung in rungs} == {"None", "Selective", "Full"}
    assert sum(rung.sequence_parallel for rung in rungs) >= 5
    assert sum(rung.padding_sequences > 0 for rung in rungs) >= 5
