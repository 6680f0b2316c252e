"""What a size of a frozen plan may change for a later epoch: nothing that its state is cut by, and only for a gain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.planner_builders import GIB, LLAMA_3_8B, a_model, a_node, a_training, h100_node, machines

from trainingrun.planner.keeping import Situation
from trainingrun.planner.retuning import retuned, variants
from trainingrun.planner.search import plan
from trainingrun.planner.types import NodeShape, TrainingShape
from trainingrun.planner.weighing import NO_FACTORS, Factors, weigh
from trainingrun.protocol.records import Rung

BEGINS = Situation(
    measured_steps=500,
    remaining_steps=10_000,
    stop_seconds=20,
    reshape_seconds=40,
    starts_anyway=True,
    looks=1,
)


def a_large_run(mode: str = "None") -> tuple[TrainingShape, NodeShape, Rung]:
    training = a_training(
        sequence_length=4096, global_batch_sequences=512, compute_bytes=2, activation_checkpointing=mode
    )
    node = h100_node()
    return training, node, plan(LLAMA_3_8B, training, machines(node, 4, 4)).rungs[0].rung


def test_variants_keep_the_layout_the_copies_and_the_batch() -> None:
    training, node, rung = a_large_run("Auto")
    found = variants(LLAMA_3_8B, training, node, rung, NO_FACTORS)
    assert len(found) > 3
    for one in found:
        assert one.rung.layout == rung.layout
        assert (one.rung.world, one.rung.state_copies, one.rung.nodes) == (rung.world, rung.state_copies, 4)
        computed = one.rung.data * one.rung.micro_batch * one.rung.accumulation
        assert computed - one.rung.padding_sequences == training.global_batch_sequences
        assert (one.rung.micro_batch, one.rung.activation_checkpointing) != (
            rung.micro_batch,
            rung.activation_checkpointing,
        )


def test_what_the_run_asked_for_is_never_computed_otherwise() -> None:
    training, node, rung = a_large_run("Full")
    modes = {
        one.rung.activation_checkpointing for one in variants(LLAMA_3_8B, training, node, rung, NO_FACTORS)
    }
    assert modes == {"Full"}


def test_what_a_buddy_keeps_is_not_given_up_for_speed() -> None:
    """A larger micro-batch fits only without the snapshots of a buddy, in the memory of the host and so of the node."""
    training = a_training(
        pinned={"pipeline": 2}, memory_copies=2, global_batch_sequences=64, sequence_length=512
    )
    model = a_model(max_position_embeddings=512)
    slow = {"flops_per_second": 1e12, "memory_bytes_per_second": 1e13}  # starting operations is what counts
    roomy = a_node(1, GIB, **slow)
    rung = plan(model, training, machines(roomy, 2, 2)).rungs[0].rung
    small = replace(rung, micro_batch=1, accumulation=64, padding_sequences=0, buddies=True, state_copies=2)
    two = next(
        one
        for one in variants(model, training, roomy, small, NO_FACTORS)
        if (one.rung.micro_batch, one.rung.activation_checkpointing) == (2, "None")
    )
    node = replace(roomy, memory_bytes=int((two.memory.total - 1000) / 0.96))
    tight = {one.rung.micro_batch: one for one in variants(model, training, node, small, NO_FACTORS)}
    assert tight[2].fits
    assert (tight[2].rung.buddies, tight[2].rung.state_copies) == (False, 1)
    assert weigh(model, training, node, small).rung.buddies
    decision, same = retuned(model, training, node, small, NO_FACTORS, BEGINS)
    assert not decision.change
    assert same == small
    freed, other = retuned(model, training, roomy, small, NO_FACTORS, BEGINS)
    assert freed.change
    assert other.buddies


def test_a_plan_that_is_as_predicted_is_kept() -> None:
    training, node, rung = a_large_run()
    decision, same = retuned(LLAMA_3_8B, training, node, rung, NO_FACTORS, BEGINS)
    assert not decision.change
    assert same == rung


def test_a_run_that_ran_out_of_memory_takes_what_needs_less() -> None:
    training, node, rung = a_large_run("Auto")
    out = replace(BEGINS, ran_out=True, looks=0, measured_steps=0)
    decision, other = retuned(LLAMA_3_8B, training, node, rung, Factors(memory=1.3), out)
    assert decision.change
    before = weigh(LLAMA_3_8B, training, node, rung)
    assert weigh(LLAMA_3_8B, training, node, other).memory.total < before.memory.total
    assert other.layout == rung.layout


def test_a_smaller_micro_batch_than_needed_is_left_for_a_larger_one_that_pays() -> None:
    node = a_node(2, GIB)
    training = a_training(global_batch_sequences=64)
    rung = plan(a_model(), training, machines(node, 1, 1)).rungs[0].rung
    data = rung.data
    small = replace(rung, micro_batch=1, accumulation=64 // data, padding_sequences=0)
    decision, other = retuned(a_model(), training, node, small, NO_FACTORS, BEGINS)
    assert decision.change
    assert other.micro_batch > 1
    waiting, same = retuned(a_model(), training, node, small, NO_FACTORS, replace(BEGINS, looks=0))
    assert (waiting.change, waiting.looks, same) == (False, 1, small)


@pytest.mark.parametrize("memory", [0.85, 1.0, 1.2])
def test_the_answer_is_always_the_same_and_stays_once_taken(memory: float) -> None:
    training, node, rung = a_large_run("Auto")
    factors = Factors(memory=memory)
    first = retuned(LLAMA_3_8B, training, node, rung, factors, BEGINS)
    assert first == retuned(LLAMA_3_8B, training, node, rung, factors, BEGINS)
    again, settled = retuned(LLAMA_3_8B, training, node, first[1], factors, BEGINS)
    assert not again.change
    assert settled == first[1]
