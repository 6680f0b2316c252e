"""Memory of ranks against published formulas and one measurement that is known to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.cost_builders import GPT_22B, LLAMA_8B, LLAMA_70B, MIXTRAL, a_workload

from trainingrun.planner.cost.activations import layer_kept
from trainingrun.planner.cost.inflight import layers_in_flight
from trainingrun.planner.cost.memory import fullest, peak_memory, rank_bill
from trainingrun.planner.cost.states import stage_parameters, states
from trainingrun.planner.cost.types import Layout, Numerics, Recompute, Sharding
from trainingrun.planner.moments import layer_activation_elements
from trainingrun.planner.types import TrainingShape

GIB = 1 << 30


def _states(**given: object) -> tuple[float, float]:
    """Bytes a parameter of weights, gradients and optimizer together; and parameters."""
    work = a_workload(**given)
    parameters = stage_parameters(work, 0)
    held = states(work, parameters)
    return (held.weights + held.gradients + held.optimizer) / parameters.total, parameters.total


@pytest.mark.parametrize(
    ("sharding", "bytes_each"),
    [
        (Sharding.NONE, 18.0),  # bfloat16 weights, single-precision gradients, masters and two moments
        (Sharding.OPTIMIZER, 6 + 12 / 8),
        (Sharding.GRADIENTS, 2 + 16 / 8),
        (Sharding.WEIGHTS, 16 / 8),
    ],
)
def test_bytes_a_parameter_by_what_data_ranks_share(sharding: Sharding, bytes_each: float) -> None:
    shard = 1 if sharding is Sharding.NONE else 8
    assert _states(data=8, sharding=sharding, shard=shard)[0] == pytest.approx(bytes_each)


def test_adam_in_single_precision_needs_sixteen_bytes() -> None:
    assert _states(numerics=Numerics("fp32", 4, 0, 4, 8, 4))[0] == 16.0


def test_a_steady_state_that_is_known_to_the_byte() -> None:
    """Megatron-LM's test of a 7B model on tensor 4, data 2 holds 20,663,519,232 bytes between steps."""
    model = replace(LLAMA_8B, intermediate_size=16384, gated=False, vocabulary_size=131073, rotary=False,
                    query_bias=True, output_bias=True, feed_forward_bias=True, norm_bias=True)  # fmt: skip
    work = a_workload(model, tensor=4, data=2, sharding=Sharding.OPTIMIZER, shard=2)
    held = states(work, stage_parameters(work, 0))
    assert held.weights + held.gradients + held.optimizer == pytest.approx(20_663_519_232, rel=0.03)


def test_experts_are_shared_among_the_ranks_that_hold_the_same() -> None:
    work = a_workload(MIXTRAL, data=8, expert=8, sharding=Sharding.OPTIMIZER, shard=8)
    parameters = stage_parameters(work, 0)
    held = states(work, parameters)
    assert held.optimizer == pytest.approx(12 * (parameters.dense / 8 + parameters.routed))


def test_a_layer_of_llama_keeps_twelve_and_its_feed_forward() -> None:
    """(12 + 4 k/a + 6 f/h) h bytes a token, divided by tensor with sequence parallelism, and 4 for each head."""
    work = a_workload(LLAMA_70B, tensor=8, sequence_parallel=True)
    ratio = 28672 / 8192
    formula = (12 + 4 * 8 / 64 + 6 * ratio) * 8192 / 8
    assert layer_kept(work).dense == pytest.approx(formula + 4 * 64 / 8)


def test_a_layer_of_gpt_keeps_what_was_published() -> None:
    """s b h (34 + 5 a s / h) with dropout and without flash attention; 10 of it is whole without sequence
    parallelism.
    """
    plain = a_workload(GPT_22B, dropout=True, sequence_length=2048)
    naive = replace(plain, framework=replace(plain.framework, flash_attention=False))
    scores = 5 * 64 * 2048 / 6144
    assert layer_kept(naive).dense == pytest.approx((34 + scores) * 6144)
    cut = replace(naive, layout=replace(naive.layout, tensor=8))
    assert layer_kept(cut).dense == pytest.approx((10 + 24 / 8 + scores / 8) * 6144)


@pytest.mark.parametrize(("tensor", "context"), [(1, 1), (2, 1), (4, 2)])
def test_our_own_layers_keep_what_the_native_planner_counts(tensor: int, context: int) -> None:
    work = a_workload(
        LLAMA_8B, kind="native-fp32", tensor=tensor, context=context, numerics=Numerics("fp32", 4, 0, 4, 8, 4)
    )
    training = TrainingShape(4096, 8, 4, pinned={"context": context})
    assert layer_kept(work).dense == 4 * layer_activation_elements(LLAMA_8B, training, tensor)


def test_full_recomputation_keeps_the_input() -> None:
    assert layer_kept(a_workload(recompute=Recompute.FULL)).input == 2 * 4096


@pytest.mark.parametrize(
    ("layout", "layers", "rank", "held"),
    [
        (Layout(pipeline=4, accumulation=8), 3, 0, 12),
        (Layout(pipeline=4, accumulation=8), 3, 3, 3),
        (Layout(pipeline=4, accumulation=2), 3, 0, 6),
        (Layout(pipeline=4, accumulation=8, schedule="GPipe"), 3, 0, 24),
        (Layout(pipeline=4, accumulation=8, schedule="ZBV"), 3, 2, 12),
        # 12 layers (1 + 3 / 12) on the first rank, and nine turns on the last
        (Layout(pipeline=4, accumulation=8, virtual=3, schedule="Interleaved1F1B"), 3, 0, 15),
        (Layout(pipeline=4, accumulation=8, virtual=3, schedule="Interleaved1F1B"), 3, 3, 9),
        # the head stands in for the last rank's second stage
        (Layout(pipeline=4, accumulation=8, virtual=2, schedule="Interleaved1F1B"), 1, 3, 4),
    ],
)
def test_layers_in_flight_by_schedule(layout: Layout, layers: int, rank: int, held: int) -> None:
    assert layers_in_flight(layout, layers, rank) == held


def test_the_first_stage_is_fullest_where_activations_are_most_and_the_last_where_logits_are() -> None:
    deep = a_workload(LLAMA_70B, tensor=8, pipeline=8, accumulation=32, sequence_parallel=True)
    assert fullest(peak_memory(deep)).rank == "first stage"
    wide = a_workload(replace(LLAMA_8B, vocabulary_size=512_000), pipeline=2, accumulation=2, micro_batch=4)
    assert fullest(peak_memory(wide)).rank == "last stage"


def test_the_parts_add_up() -> None:
    bill = rank_bill(a_workload(), 0)
    parts = bill.weights + bill.gradients + bill.optimizer + bill.activations + bill.logits + bill.buffers
    assert bill.allocated == parts
    assert bill.total == bill.allocated + bill.context + bill.slack


def test_offloaded_states_are_on_the_host() -> None:
    plain = rank_bill(a_workload(data=8, sharding=Sharding.WEIGHTS, shard=8, kind="deepspeed"), 0)
    layout = {"data": 8, "sharding": Sharding.WEIGHTS, "shard": 8, "offload_optimizer": True}
    moved = rank_bill(a_workload(kind="deepspeed", **layout), 0)
    assert moved.optimizer == 0
    assert moved.host == plain.optimizer
    assert moved.allocated == plain.allocated - plain.optimizer


def test_adapters_leave_the_optimizer_to_themselves() -> None:
    whole = rank_bill(a_workload(kind="litgpt"), 0)
    adapted = a_workload(kind="litgpt", numerics=Numerics("bf16", gradients=2, moments=8, adapters=4_000_000))
    bill = rank_bill(adapted, 0)
    assert bill.optimizer == 8 * 4_000_000
    assert bill.weights == pytest.approx(2 * 8_030_261_248, rel=0.001)
    assert bill.allocated < 0.4 * whole.allocated
    narrow = replace(adapted, numerics=replace(adapted.numerics, weights=0.55))
    assert rank_bill(narrow, 0).weights < 0.55 * bill.weights


def test_newer_accelerators_have_larger_workspaces() -> None:
    """32 MiB for each of two threads of cuBLAS and for Transformer Engine, where an A100 has 8 and 4."""
    old, new = (rank_bill(a_workload(gpu=gpu), 0).buffers for gpu in ("A100-SXM-80GB", "H100-SXM-80GB"))
    assert new - old == pytest.approx((3 * 32 - 2 * 8.125 - 4) * (1 << 20))


def test_the_allocator_gives_back_before_it_fails() -> None:
    tight = a_workload(
        LLAMA_8B, data=8, sharding=Sharding.OPTIMIZER, shard=8, gpu="A100-SXM-80GB", micro_batch=1
    )
    bill = rank_bill(tight, 0)
    assert bill.slack <= max(0.0, tight.machine.memory_bytes - bill.allocated - bill.context)
