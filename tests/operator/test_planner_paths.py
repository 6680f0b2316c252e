"""One cut for all sizes of a run: how sizes are weighed against each other, and what that takes and leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks import planner_paths
from tests.operator.planner_builders import (
    GIB,
    LLAMA_2_70B,
    LLAMA_3_8B,
    a_model,
    a_node,
    a_training,
    h100_node,
    machines,
)

from trainingrun.planner.errors import NothingFits, PlanInputError
from trainingrun.planner.fastest import NEARLY, WORTH, all_groups, fastest, weighed
from trainingrun.planner.layout import Cut
from trainingrun.planner.scales import Scales, Weighing
from trainingrun.planner.search import plan
from trainingrun.planner.sizes import risk, sizes_of
from trainingrun.planner.types import NodeShape, TrainingShape


@pytest.fixture(scope="module")
def seventy() -> tuple[TrainingShape, NodeShape]:
    training = a_training(
        sequence_length=4096,
        global_batch_sequences=1024,
        compute_bytes=2,
        activation_checkpointing="Auto",
        any_schedule=True,
    )
    return training, replace(h100_node(), host_memory_bytes=0)


def test_filling_more_sizes_is_weighed_against_speed(seventy: tuple[TrainingShape, NodeShape]) -> None:
    training, node = seventy
    path = plan(LLAMA_2_70B, training, machines(node, 8, 64))
    alone = plan(LLAMA_2_70B, training, machines(node, 64, 64)).rungs[0]
    useful = [planned.rung.nodes for planned in path.rungs if planned.rung.useful]
    assert useful[0] == 8
    assert len(useful) >= 8
    assert path.rungs[-1].step_seconds < 1.25 * alone.step_seconds
    assert f"fills {len(useful)} of 57 sizes" in path.reason
    name = f"tensor {alone.rung.tensor}, pipeline {alone.rung.pipeline}, shard {alone.rung.shard}"
    assert (
        f"{name}, micro-batch {alone.rung.micro_batch}, recompute Full fits, but would start at"
        in path.reason
    )
    assert "with minNodes 16: that one (" in path.reason


def test_a_faster_cut_does_not_take_the_smallest_size_away(seventy: tuple[TrainingShape, NodeShape]) -> None:
    """A run goes on with minNodes, though copies of more nodes would be somewhat faster on average."""
    training, node = seventy
    for model, least, most in ((LLAMA_2_70B, 8, 64), (LLAMA_3_8B, 1, 8), (LLAMA_3_8B, 1, 64)):
        inventory = machines(node, least, most)
        choice = fastest(model, training, inventory)
        assert choice is not None
        assert choice.candidate.units <= least
        scales = Scales(model, inventory)
        free = weighed([Weighing(scales, group) for group in all_groups(model, training, inventory)])
        assert choice.average <= NEARLY * WORTH * free.near[0][0]
        path = plan(model, training, inventory)
        assert path.rungs[0].rung.useful
        assert "training starts at" not in path.reason


def test_a_smallest_size_that_costs_too_much_is_not_trained_on_and_that_is_told(
    seventy: tuple[TrainingShape, NodeShape],
) -> None:
    """Copies of three nodes, eight tensor ranks and no pipeline would take twice as long on 64."""
    training, node = seventy
    path = plan(LLAMA_2_70B, training, machines(node, 3, 64))
    first = next(planned.rung.nodes for planned in path.rungs if planned.rung.useful)
    assert first > 3
    assert f"training starts at {first} nodes" in path.reason
    assert "to begin at 3 nodes would take more than a fourth more time" in path.reason


def test_a_size_that_no_cut_can_do_leaves_the_others_to_be_filled(
    seventy: tuple[TrainingShape, NodeShape],
) -> None:
    training, node = seventy
    path = plan(LLAMA_2_70B, training, machines(node, 1, 8))
    useful = [planned.rung.nodes for planned in path.rungs if planned.rung.useful]
    assert useful
    assert f"so training starts at {useful[0]} nodes" in path.reason
    assert path.rungs[-1].rung.useful


def test_one_size_is_told_without_an_average(seventy: tuple[TrainingShape, NodeShape]) -> None:
    training, node = seventy
    reason = plan(LLAMA_2_70B, training, machines(node, 16, 16)).reason
    assert "a step on 16 nodes, the fastest of " in reason
    assert "sizes" not in reason
    assert "nodes alone" not in reason


def test_sizes_weigh_one_together_and_the_largest_half() -> None:
    training = a_training(global_batch_sequences=1024)
    inventory = machines(h100_node(), 8, 64)
    cut = Cut(pipeline=4, shard=4, tensor=4)
    found = sizes_of(training, cut, 8, inventory)
    assert [(size.nodes, size.replicate) for size in found] == [(8 * n, n) for n in range(1, 9)]
    assert sum(size.weight for size in found) == pytest.approx(1.0)
    assert found[-1].weight == pytest.approx(0.5 + 0.5 / 57)
    assert found[0].weight == pytest.approx(0.5 * 8 / 57)
    # Copies of three nodes do nothing on 8; with 100 sequences, 5 ranks of data have as much to do as 4 of 25.
    three = sizes_of(training, Cut(pipeline=1, shard=3, tensor=8), 3, inventory)
    assert three[0].nodes == 9
    assert sum(size.weight for size in three) == pytest.approx(1.0 - 0.5 / 57)
    few = sizes_of(replace(training, global_batch_sequences=4), Cut(1, 1, 8), 1, machines(h100_node(), 1, 8))
    assert [size.nodes for size in few] == [1, 2, 4]


def test_what_may_run_out_of_memory_is_counted_as_slower() -> None:
    bill = plan(a_model(), a_training(), machines(a_node(1), 1, 1)).rungs[0].memory
    roomy, tight = (replace(a_node(1), memory_bytes=int(bill.total * factor)) for factor in (4.0, 1.02))
    assert risk(bill, roomy) == pytest.approx(1.0)
    assert 1.05 < risk(bill, tight) < 2.0


@pytest.mark.parametrize("device", ["cpu", "nvidia.com/gpu"])
def test_whole_copies_must_fill_a_size_of_the_run(device: str) -> None:
    training, node = a_training(pinned={"pipeline": 2}), a_node(1, 8 * GIB, device=device)
    with pytest.raises(NothingFits, match="never fill 3 nodes; nearest that fits: minNodes 2") as caught:
        plan(a_model(), training, machines(node, 3, 3))
    assert caught.value.fix == "set spec.scale.minNodes to 2 or less"
    assert plan(a_model(), training, machines(node, 2, 3)).rungs[0].rung.useful


@pytest.mark.parametrize("device", ["cpu", "nvidia.com/gpu"])
def test_a_batch_must_keep_the_smallest_size_busy(device: str) -> None:
    model = a_model(layers=1, attention_heads=1, key_value_heads=1)
    training, node = a_training(global_batch_sequences=8), a_node(1, 8 * GIB, device=device)
    with pytest.raises(PlanInputError, match="nearest that fits: 16") as caught:
        plan(model, training, machines(node, 16, 20))
    assert "set spec.scale.minNodes to 8" in caught.value.fix
    assert plan(model, training, machines(node, 8, 20)).rungs[0].rung.useful


def test_the_table_of_paths_says_what_the_plans_do() -> None:
    found = planner_paths.line("8B", "8 x H100", 1, 2)
    assert found is not None
    cells = [cell.strip() for cell in found.strip("|").split("|")]
    assert len(cells) == planner_paths.HEADER.splitlines()[0].count("|") - 1
    assert cells[:3] == ["8B", "8 x H100", "1..2"]
    assert cells[5] == "2 of 2"
    assert planner_paths.line("405B", "4 x L4", 1, 2) is None
