"""The planner knows the bytes of each precision, optimizer and way of keeping activations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.operator.planner_builders import LLAMA_3_8B, a_model, a_node, a_training, h100_node, machines

from trainingrun.planner.candidates import candidates
from trainingrun.planner.errors import NothingFits, PlanInputError
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import memory_bill
from trainingrun.planner.optimizer_state import state_bytes
from trainingrun.planner.parameters import count_parameters, stage_parameters
from trainingrun.planner.search import plan
from trainingrun.planner.time import predict
from trainingrun.planner.types import MemoryBill, NodeShape, TrainingShape
from trainingrun.protocol.attention import LONGEST_KEPT

GOLDEN = Path(__file__).parents[1] / "golden" / "resolved-spec.json"
HALF = {"parameter_bytes": 4, "compute_bytes": 2}
ALONE = Cut(pipeline=1, shard=1, tensor=1)
PARAMETERS = count_parameters(a_model())
DEEP = a_model(layers=8)
LAYER_MATRICES = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)


def bill(cut: Cut = ALONE, node: NodeShape | None = None, layers: int = 2, **changes: Any) -> MemoryBill:
    return memory_bill(
        a_model(layers=layers),
        a_training(**changes),
        node or a_node(),
        cut,
        replicate=1,
        micro_batch=2,
        accumulation=4,
    )


def test_half_precision_takes_a_copy_beside_the_master_and_full_gradients_and_moments() -> None:
    """18 bytes a parameter: 2 + 4 for weights, 4 for gradients, 8 for moments."""
    half = bill(**HALF)
    parts = (half.weights, half.gradients, half.optimizer)
    assert parts == (6 * PARAMETERS, 4 * PARAMETERS, 8 * PARAMETERS)


def test_sharded_half_precision_keeps_the_master_only_and_gathers_half() -> None:
    cut = Cut(pipeline=1, shard=2, tensor=1)
    full, half = bill(cut), bill(cut, **HALF)
    assert half.weights == full.weights == 4 * PARAMETERS // 2
    assert half.buffers < full.buffers


def test_half_precision_halves_activations_and_keeps_the_loss_in_full() -> None:
    full, half = (
        memory_bill(
            a_model(vocabulary_size=8192),
            a_training(sequence_length=256, **changes),
            a_node(),
            ALONE,
            replicate=1,
            micro_batch=2,
            accumulation=4,
        )
        for changes in ({}, HALF)
    )
    tokens = 2 * 256
    # Each of the five norms keeps its input in full besides, which is two hidden states; the log-sum-exp of two layers'
    # four heads stays in full. In full, the fullest moment is the head's backward pass: with a hidden state's gradient.
    assert 2 * half.activations == full.activations + 4 * tokens * (5 * 2 * 64 + 2 * 4 - 64)
    assert full.logits == 4 * tokens * 8192  # once: they turn into their own gradient
    assert half.logits == (4 + 2) * tokens * 8192


@pytest.mark.parametrize(
    ("optimizer", "elements"),
    [
        ("AdamW", 2 * PARAMETERS),
        ("Lion", PARAMETERS),
        ("Muon", LAYER_MATRICES + 2 * (PARAMETERS - LAYER_MATRICES)),
        # rows and columns of seven matrices a layer, two norms; two vocabulary matrices and the last norm
        ("Adafactor", 2 * (128 + 2 * 96 + 128 + 3 * 192 + 2 * 64) + 2 * (256 + 64) + 64),
    ],
)
def test_each_optimizer_has_its_state(optimizer: str, elements: int) -> None:
    found = bill(optimizer=optimizer)
    assert found.optimizer == 4 * elements
    assert found.snapshots == 3 * 4 * (PARAMETERS + elements)


# Queries and output, gate, up and down of two layers, and the head; keys and values have fewer than 4096 elements.
CODED = 2 * (2 * 64 * 64 + 3 * 64 * 128) + 256 * 64
CODED_ROWS = 2 * (2 * 64 + 2 * 128 + 64) + 256  # each of one block


def test_eight_bits_are_two_bytes_and_two_scales_a_block_and_the_rest_is_full() -> None:
    found = bill(optimizer="AdamW8bit")
    state = 2 * CODED + 2 * 4 * CODED_ROWS + 2 * 4 * (PARAMETERS - CODED)
    assert found.optimizer == state
    assert found.snapshots == 3 * (4 * PARAMETERS + state)


def test_a_tied_head_is_an_embedding_and_keeps_full_moments() -> None:
    def state(*, tied: bool) -> int:
        model = a_model(tied_embeddings=tied)
        training = a_training(optimizer="AdamW8bit")
        cut = Cut(pipeline=2, shard=1, tensor=1)
        parameters = stage_parameters(model, pipeline=2, stage=1, tensor=1)
        return state_bytes(model, training, parameters, cut)

    assert state(tied=True) - state(tied=False) == 2 * 4 * 256 * 64 - (2 * 256 * 64 + 2 * 4 * 256)


def test_full_blocks_take_two_bytes_and_a_thirty_second_for_each_parameter() -> None:
    training, cut = a_training(optimizer="AdamW8bit"), Cut(pipeline=4, shard=2, tensor=8)
    parameters = stage_parameters(LLAMA_3_8B, pipeline=4, stage=1, tensor=8)
    norms = 8 * 2 * 4096  # of the stage's eight layers
    matrices = parameters.total - norms
    expected = (matrices * (2 + 8 / 256) + norms * 8) / 2
    assert state_bytes(LLAMA_3_8B, training, parameters, cut) == expected


def test_a_tensor_degree_that_would_cut_a_block_is_not_tried() -> None:
    def tried(optimizer: str, intermediate_size: int) -> set[int]:
        model = a_model(head_dim=128, intermediate_size=intermediate_size)
        found = candidates(model, a_training(optimizer=optimizer), a_node(), max_units=2)
        return {candidate.cut.tensor for candidate in found}

    assert tried("AdamW", 768) == {1, 2}
    assert tried("AdamW8bit", 768) == {1}
    assert tried("AdamW8bit", 512) == {1, 2}


def test_a_pinned_tensor_degree_that_would_cut_a_block_is_refused_with_the_nearest_that_does_not() -> None:
    model, node = a_model(head_dim=256, key_value_heads=4, intermediate_size=512), machines(a_node(4))
    training = a_training(optimizer="AdamW8bit", pinned={"tensor": 4})
    with pytest.raises(PlanInputError) as caught:
        plan(model, training, node)
    error = caught.value
    assert (error.path, error.value) == ("spec.parallelism.axes.tensor", 4)
    assert "intermediate_size 512 / 4 = 128, / 256 = 0.50 blocks; nearest that fits: 2" in error.message
    assert error.fix == "set tensor to one of: 1, 2; or use spec.training.optimizer.name AdamW"
    assert plan(model, replace(training, pinned={"tensor": 2}), node).rungs[0].rung.tensor == 2


def test_an_average_is_one_more_copy_and_is_in_the_snapshots() -> None:
    plain, averaged = bill(), bill(averaged=True)
    assert averaged.optimizer - plain.optimizer == 4 * PARAMETERS
    assert averaged.snapshots - plain.snapshots == 3 * 4 * PARAMETERS


def test_a_z_loss_and_eager_attention_have_their_price() -> None:
    assert bill(z_loss=True).logits == 5 * bill().logits
    eager, fused = (bill(eager=eager, sequence_length=256).activations for eager in (True, False))
    # For each token that each of the heads looks at a weight, and for all of them a byte instead of a number.
    assert eager - fused == 2 * 4 * 2 * 256 * (4 * 256 - 256 + 256 // 4)


def test_attention_over_short_sequences_keeps_the_weights_of_its_pairs_once() -> None:
    short, long = (bill(sequence_length=length) for length in (LONGEST_KEPT, LONGEST_KEPT + 1))
    assert short.activations > long.activations
    # Eager attention has as many weights, but repeats keys and values to the other two heads, and keeps a mask.
    more = 2 * 2 * 16 + 4 + LONGEST_KEPT // 4
    eager = bill(sequence_length=LONGEST_KEPT, eager=True)
    assert eager.activations - short.activations == 2 * 4 * 2 * LONGEST_KEPT * more


def test_layers_that_are_computed_twice_keep_their_input_only() -> None:
    bills = {
        mode: bill(activation_checkpointing=mode, sequence_length=512, layers=8)
        for mode in ("None", "Selective", "Full")
    }
    assert bills["None"].total > 1.5 * bills["Selective"].total > 2 * bills["Full"].total


def test_a_layer_computed_twice_costs_a_forward_pass_and_the_head_does_not() -> None:
    model = replace(a_model(layers=16), vocabulary_size=16)
    none, selective, full = (
        predict(
            model,
            a_training(activation_checkpointing=mode),
            a_node(),
            ALONE,
            replicate=1,
            micro_batch=8,
            accumulation=1,
        ).compute
        for mode in ("None", "Selective", "Full")
    )
    assert selective == pytest.approx((none + full) / 2)
    assert full / none == pytest.approx(4 / 3, rel=0.01)


def shape(**changes: Any) -> TrainingShape:
    return a_training(sequence_length=2048, global_batch_sequences=8, **changes)


def memory_for(mode: str) -> int:
    """Just enough for a process of the small model in this mode."""
    found = memory_bill(
        DEEP,
        shape(activation_checkpointing=mode),
        a_node(1),
        ALONE,
        replicate=2,
        micro_batch=1,
        accumulation=8,
    )
    return int(found.total * 1.05)


@pytest.mark.parametrize("mode", ["None", "Selective", "Full"])
def test_auto_computes_as_few_layers_twice_as_fit(mode: str) -> None:
    inventory = machines(a_node(1, memory_for(mode)), max_nodes=1)
    path = plan(DEEP, shape(activation_checkpointing="Auto"), inventory)
    (planned,) = path.rungs
    assert planned.rung.activation_checkpointing == mode
    said = [reason for reason in planned.reasons if reason.startswith("activations: ")]
    assert bool(said) is (mode != "None")


def test_auto_computes_layers_twice_rather_than_begin_at_more_nodes() -> None:
    """minNodes is a promise. With every second layer computed twice a copy of this model takes four nodes, and fits."""
    node = a_node(2, memory_for("Full"))
    less = plan(DEEP, shape(activation_checkpointing="Selective"), machines(node, max_nodes=4))
    assert less.begins == 4
    path = plan(DEEP, shape(activation_checkpointing="Auto"), machines(node, max_nodes=4))
    assert path.begins == 1
    assert path.rungs[0].rung.activation_checkpointing == "Full"
    assert "with recomputation Selective training would start at 4 nodes" in path.reason
    later = plan(DEEP, shape(activation_checkpointing="Auto"), machines(node, 4, 5))
    assert later.begins == 4
    assert {planned.rung.activation_checkpointing for planned in later.rungs} == {"Selective"}


def test_what_was_asked_for_is_kept_and_refused_where_it_does_not_fit() -> None:
    small = machines(a_node(1, memory_for("Full")), max_nodes=1)
    with pytest.raises(NothingFits):
        plan(DEEP, shape(activation_checkpointing="None"), small)
    large = machines(a_node(1, 1 << 34), max_nodes=1)
    path = plan(DEEP, shape(activation_checkpointing="Full"), large)
    assert path.rungs[0].rung.activation_checkpointing == "Full"


def test_the_inputs_come_from_the_spec() -> None:
    spec = json.loads(GOLDEN.read_text())
    _, training, _ = planner_inputs(spec)
    assert (training.activation_bytes, training.optimizer, training.averaged) == (4, "AdamW", False)
    assert training.activation_checkpointing == "Auto"
    spec["training"] |= {"precision": "BF16", "overrides": {"emaDecay": 0.99}}
    spec["training"]["optimizer"]["name"] = "Muon"
    _, training, _ = planner_inputs(spec)
    assert (training.parameter_bytes, training.activation_bytes, training.mixed) == (4, 2, True)
    assert (training.optimizer, training.averaged) == ("Muon", True)


def test_a_spec_of_an_older_version_is_read_as_it_was_meant() -> None:
    spec = json.loads(GOLDEN.read_text())
    del spec["training"]["overrides"]
    del spec["parallelism"]["activationCheckpointing"]
    _, training, _ = planner_inputs(spec)
    assert (training.averaged, training.activation_checkpointing) == (False, "None")


def test_an_accelerator_is_faster_in_half_precision() -> None:
    spec = json.loads(GOLDEN.read_text())
    spec["resources"] = {"perNode": {"cpu": "96", "memory": "900Gi", "nvidia.com/gpu": "8"}}
    rates = []
    for precision in ("FP32", "BF16"):
        spec["training"]["precision"] = precision
        _, _, inventory = planner_inputs(spec, accelerator_name="NVIDIA-H100-80GB-HBM3")
        rates.append(inventory.node.flops_per_second)
    assert rates[1] > 10 * rates[0]


def test_orthogonalising_costs_time_on_every_rank_and_so_does_rounding() -> None:
    def optimizer_seconds(name: str) -> float:
        return predict(
            LLAMA_3_8B,
            a_training(optimizer=name),
            h100_node(),
            Cut(pipeline=1, shard=8, tensor=1),
            replicate=1,
            micro_batch=1,
            accumulation=1,
        ).optimizer

    assert optimizer_seconds("Muon") > 2 * optimizer_seconds("AdamW")
    assert optimizer_seconds("AdamW8bit") == pytest.approx(25 / 7 * optimizer_seconds("AdamW"))


@pytest.mark.parametrize(
    ("training", "parallelism", "path", "message"),
    [
        (
            {"precision": "BF16"},
            {"pipelineSchedule": "ZBV"},
            "spec.parallelism.pipelineSchedule",
            "it would add up the gradients of BF16 weights in BF16, not in FP32",
        ),
        (
            {"overrides": {"compile": True}},
            {"axes": {"tensor": 2}},
            "spec.parallelism.axes.tensor",
            "layers that talk to other ranks are not compiled",
        ),
        (
            {"overrides": {"attention": "Eager"}},
            {"axes": {"context": 2}},
            "spec.training.overrides.attention",
            "context 2 gathers keys and values for Sdpa",
        ),
        (
            {"overrides": {"attention": "Flash"}},
            {},
            "spec.training.overrides.attention",
            "flash-attn computes on accelerators, and this version of the trainer on CPUs",
        ),
    ],
)
def test_what_is_not_exact_under_an_axis_is_refused_before_anything_starts(
    training: dict[str, Any], parallelism: dict[str, Any], path: str, message: str
) -> None:
    spec = json.loads(GOLDEN.read_text())
    spec["training"] |= training
    spec["parallelism"] |= parallelism
    with pytest.raises(PlanInputError) as caught:
        planner_inputs(spec)
    assert (caught.value.path, caught.value.message) == (path, message)


def test_compiled_layers_are_planned_with_data_parallelism_alone() -> None:
    spec = json.loads(GOLDEN.read_text())
    spec["training"]["overrides"] = {"compile": True}
    assert planner_inputs(spec)[1].pinned == {"tensor": 1, "pipeline": 1}
