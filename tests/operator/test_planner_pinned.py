"""Configurations that a user gives: how they are completed, what cannot be, and what weighing them says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.planner_builders import GIB, LLAMA_3_8B, a_model, a_node, a_training, h100_node, machines

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.nearby import nearby
from trainingrun.planner.pinned import Given, completed
from trainingrun.planner.search import plan
from trainingrun.planner.types import MemoryBill
from trainingrun.planner.weighing import (
    Factors,
    allocated,
    corrected,
    corrected_bill,
    in_predicted_bytes,
    p_oom,
    peak_flops,
    price_per_billion_tokens,
    weigh,
)
from trainingrun.protocol.records import Rung


def chosen(nodes: int = 2, processes: int = 4) -> Rung:
    return plan(a_model(), a_training(), machines(a_node(processes), nodes, nodes)).rungs[-1].rung


def complete(pins: Given, nodes: int = 2, processes: int = 4) -> Rung:
    return completed(a_model(), a_training(), pins, chosen(nodes, processes), processes)[1]


def test_nothing_given_is_the_planners_own_choice() -> None:
    assert complete(Given()) == chosen()


def test_data_ranks_make_up_for_what_an_axis_takes() -> None:
    rung = complete(Given(tensor=2))
    assert (rung.tensor, rung.data, rung.world) == (2, 4, 8)
    assert complete(Given(tensor=2, shard=1)).replicate == 4
    assert complete(Given(replicate=1)).shard == 8


def test_the_batch_is_kept_and_its_padding_told() -> None:
    rung = complete(Given(micro_batch=3))
    assert rung.data * rung.micro_batch * rung.accumulation == 8 + rung.padding_sequences


def test_a_longer_pipeline_is_filled() -> None:
    rung = complete(Given(pipeline=2, micro_batch=1))
    assert rung.accumulation >= 2
    assert rung.schedule == "1F1B"


@pytest.mark.parametrize(
    ("pins", "words"),
    [
        (Given(tensor=3), "tensor 3 does not divide 4 attention heads (4 / 3 = 1.33); nearest that fits: 2"),
        (Given(pipeline=3), "pipeline 3 does not divide 2 layers"),
        (
            Given(shard=3, replicate=2),
            "shard 3 x replicate 2 = 6 data ranks, but 2 nodes x 4 processes / "
            "(tensor 1 x context 1 x pipeline 1) = 8; nearest that fits: shard 4 x replicate 2",
        ),
        (Given(context=3), "context 3 does not divide both 32 tokens and the 4 processes of a node"),
        (
            Given(pipeline=2, micro_batch=8),
            "but a pipeline of 2 needs 2 to fill; nearest that fits: micro-batch 1",
        ),
        (Given(recompute="full"), "full is not one of: None, Selective, Full"),
        (Given(schedule="GPipe"), "GPipe is not one of: 1F1B"),
        (Given(tensor=0), "0 is no degree"),
        (Given(zero_stage=2), "this run has the engine Native"),
    ],
)
def test_what_cannot_be_is_refused_with_the_whole_equation(pins: Given, words: str) -> None:
    with pytest.raises(PlanInputError) as caught:
        complete(pins)
    assert words in caught.value.message
    assert caught.value.path.startswith("--")
    assert caught.value.fix


def test_more_data_ranks_than_sequences_are_refused() -> None:
    with pytest.raises(PlanInputError, match="16 data ranks, but the global batch has 8 sequences"):
        completed(a_model(), a_training(), Given(shard=2), replace(chosen(), nodes=4), 4)


def test_deepspeed_has_data_ranks_only() -> None:
    training = a_training(engine="DeepSpeed", zero_stage=1)
    own = plan(a_model(), training, machines(a_node(2), 2, 2)).rungs[0].rung
    assert completed(a_model(), training, Given(zero_stage=3), own, 2)[1].zero_stage == 3
    with pytest.raises(PlanInputError, match="has data ranks only: shard 4"):
        completed(a_model(), training, Given(tensor=2), own, 2)


def test_weighing_the_planners_choice_gives_its_own_figures() -> None:
    training, node = a_training(), a_node(4)
    planned = plan(a_model(), training, machines(node, 1, 2)).rungs[-1]
    found = weigh(a_model(), training, node, planned.rung)
    assert found.memory == planned.memory
    assert found.step_seconds == pytest.approx(planned.step_seconds)
    assert found.tokens_per_second == pytest.approx(planned.tokens_per_second)
    assert found.fits


def test_what_does_not_fit_is_weighed_all_the_same() -> None:
    training = a_training(sequence_length=8192, global_batch_sequences=64, compute_bytes=2)
    node = h100_node()
    own = plan(LLAMA_3_8B, training, machines(node, 2, 2)).rungs[-1].rung
    wide, rung = completed(LLAMA_3_8B, training, Given(micro_batch=4), own, 8)
    found = weigh(LLAMA_3_8B, wide, node, rung)
    assert not found.fits
    assert found.free < 0
    assert found.p_oom > 0.9
    assert weigh(LLAMA_3_8B, training, node, own).p_oom < 0.5


def test_computing_more_twice_never_needs_more_memory() -> None:
    needed = []
    for mode in ("None", "Selective", "Full"):
        model = a_model(layers=8)
        training, rung = completed(model, a_training(), Given(recompute=mode), chosen(), 4)
        needed.append(weigh(model, training, a_node(4), rung).memory.total)
    assert needed == sorted(needed, reverse=True)


BILLS = st.builds(
    MemoryBill, *(st.integers(0, 64 * GIB) for _ in range(6)), reserved=st.just(GIB), snapshots=st.just(0)
)


@given(BILLS, st.floats(0.5, 2.0))
@settings(deadline=None, max_examples=60)
def test_a_factor_is_of_all_that_is_allocated(bill: MemoryBill, factor: float) -> None:
    found = corrected_bill(bill, factor)
    moving = bill.activations + bill.logits + bill.buffers
    if allocated(bill) * (1 - factor) < moving:
        assert allocated(found) == pytest.approx(allocated(bill) * factor, abs=8, rel=1e-9)
    assert (found.weights, found.optimizer, found.reserved) == (bill.weights, bill.optimizer, bill.reserved)
    assert min(found.activations, found.logits, found.buffers) >= 0


def test_running_out_is_a_coin_toss_where_all_is_taken_and_grows_with_what_is_needed() -> None:
    half = MemoryBill(GIB, 0, 0, GIB, 0, 0, reserved=GIB, snapshots=0)
    assert p_oom(half, 3 * GIB) == pytest.approx(0.5)
    assert p_oom(half, 4 * GIB) < 0.01 < p_oom(half, 3 * GIB) < p_oom(half, 2 * GIB)
    assert p_oom(half, GIB) == 1.0


def test_a_node_is_seen_smaller_where_more_is_needed_than_predicted() -> None:
    node = a_node(2, 8 * GIB, reserved_bytes_per_process=GIB)
    assert in_predicted_bytes(node, 1.0) == node
    assert in_predicted_bytes(node, 1.4).memory_bytes == pytest.approx(14 * GIB / 1.4 + 2 * GIB)


def test_a_corrected_plan_is_slower_and_larger_by_its_factors() -> None:
    planned = plan(a_model(), a_training(), machines(a_node(4), 1, 1)).rungs[0]
    found = corrected(planned, Factors(memory=1.1, time=1.25))
    assert found.step_seconds == pytest.approx(1.25 * planned.step_seconds)
    assert found.tokens_per_second == pytest.approx(planned.tokens_per_second / 1.25)
    assert found.memory.total > planned.memory.total
    assert corrected(planned, Factors()) is planned


def test_utilisation_is_of_the_data_sheets_rate_and_prices_are_of_a_billion_tokens() -> None:
    assert peak_flops(h100_node(), 2) == 989e12
    assert peak_flops(a_node(), 4) == 10e9
    assert price_per_billion_tokens(36.0, 2, 1e6) == pytest.approx(20.0)


def test_what_needs_the_nodes_that_the_plan_leaves_idle_is_told_with_them() -> None:
    own = replace(chosen(nodes=2), replicate=2, shard=4, nodes=3)  # two of three nodes
    told = {near.name: near for near in nearby(a_model(layers=3), a_training(), a_node(4), own)}
    assert "tensor 2" in told
    pipelined = nearby(
        a_model(layers=6), a_training(), a_node(4), replace(own, pipeline=3, replicate=1, shard=1)
    )
    assert any(near.name.endswith(" on all 3 nodes") for near in pipelined)
