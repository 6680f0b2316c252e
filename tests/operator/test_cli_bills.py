"""Notes beside the parts of a bill and of a step: what the largest of them is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.planner_builders import LLAMA_3_8B, a_training, h100_node, machines

from trainingrun.cli.bills import memory_lines, step_lines
from trainingrun.planner.search import plan
from trainingrun.planner.text import human_bytes
from trainingrun.planner.weighing import Weighed, parts_of, weigh

TRAINING = a_training(sequence_length=4096, global_batch_sequences=512, compute_bytes=2)


def eight_shards(micro_batch: int, accumulation: int) -> Weighed:
    training = replace(TRAINING, activation_checkpointing="Full")
    rung = plan(LLAMA_3_8B, training, machines(h100_node(), 1, 1)).rungs[0].rung
    axes = {"tensor": 1, "pipeline": 1, "shard": 8, "replicate": 1}
    rung = replace(rung, micro_batch=micro_batch, accumulation=accumulation, **axes)
    return weigh(LLAMA_3_8B, training, h100_node(), rung)


def line_of(weighed: Weighed, name: str) -> str:
    return next(line for line in memory_lines(weighed) if f" {name} " in line)


def test_whole_gradients_between_micro_batches_are_named_where_they_are_the_most_of_the_buffers() -> None:
    several, one = eight_shards(1, 64), eight_shards(64, 1)
    piled = 4 * 8_030_261_248 * 7 // 8  # FP32, beyond the rank's own eighth
    assert f"  {human_bytes(piled)} whole gradients until the last micro-batch; gathered" in line_of(
        several, "buffers"
    )
    assert piled > several.memory.buffers // 2
    assert "whole gradients" not in line_of(one, "buffers")


def test_each_part_of_a_step_has_a_name_and_all_together_are_the_step() -> None:
    weighed = eight_shards(1, 64)
    parts = parts_of(weighed.times)
    assert set(parts) == {"compute", "bubble", "communication", "optimizer", "starting"}
    assert sum(parts.values()) == pytest.approx(weighed.times.total)
    (starting,) = (line for line in step_lines(weighed) if line.split()[0] == "starting")
    assert starting.endswith("operations and batches that the host starts too late to hide it")
