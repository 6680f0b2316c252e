"""Rules of the search: what a path promises whatever the model and the machines, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.planner_builders import LLAMA_3_8B, a_model, a_node, a_training, h100_node, machines

from trainingrun.api.errors import CliExit
from trainingrun.planner.errors import NothingFits, PlanError, PlanInputError
from trainingrun.planner.layout import Cut, pieces_by_node
from trainingrun.planner.memory import fits, memory_bill
from trainingrun.planner.nearby import nearby
from trainingrun.planner.search import plan
from trainingrun.planner.types import Inventory, ModelShape, PlanPath, TrainingShape
from trainingrun.protocol.records import STAGES_PER_RANK


@st.composite
def questions(draw: st.DrawFn) -> tuple[ModelShape, TrainingShape, Inventory]:
    heads = draw(st.sampled_from([1, 2, 4, 8, 12]))
    groups = draw(st.sampled_from([g for g in range(1, heads + 1) if heads % g == 0]))
    model = a_model(
        attention_heads=heads,
        key_value_heads=groups,
        head_dim=16,
        hidden_size=16 * heads,
        intermediate_size=draw(st.sampled_from([96, 128, 1000])),
        layers=draw(st.integers(1, 8)),
        vocabulary_size=draw(st.sampled_from([257, 1024, 32000])),
        tied_embeddings=draw(st.booleans()),
    )
    training = a_training(
        sequence_length=draw(st.sampled_from([16, 128, 1024])),
        global_batch_sequences=draw(st.integers(1, 64)),
        parameter_bytes=draw(st.sampled_from([4, 8])),
        schedule=draw(st.sampled_from(["1F1B", "1F1B", "Interleaved1F1B", "ZBV"])),
        pinned=draw(st.sampled_from([{}, {}, {}, {"context": 2}])),
    )
    least = draw(st.integers(1, 4))
    node = a_node(
        processes=draw(st.sampled_from([1, 2, 3, 4, 8])),
        memory_per_process=draw(st.sampled_from([1, 4, 16, 64, 512])) << 20,
    )
    return model, training, Inventory(node, least, least + draw(st.integers(0, 6)))


def answer(model: ModelShape, training: TrainingShape, inventory: Inventory) -> PlanPath | None:
    try:
        return plan(model, training, inventory)
    except PlanError:
        return None


@given(questions())
@settings(deadline=None)
def test_every_useful_rung_uses_all_machines_fits_and_does_the_whole_batch(
    question: tuple[ModelShape, TrainingShape, Inventory],
) -> None:
    model, training, inventory = question
    path = answer(model, training, inventory)
    if path is None:
        return
    assert [planned.rung.nodes for planned in path.rungs] == list(
        range(inventory.min_nodes, inventory.max_nodes + 1)
    )
    assert len({planned.rung.layout for planned in path.rungs}) == 1
    for planned in path.rungs:
        rung = planned.rung
        computed = rung.data * rung.micro_batch * rung.accumulation
        assert computed == training.global_batch_sequences + rung.padding_sequences
        if not rung.useful:
            assert rung.reason
            share = -(-training.global_batch_sequences // rung.data)
            too_little = rung.data > training.global_batch_sequences or share < rung.pipeline
            whole = rung.world == rung.nodes * inventory.node.processes
            slower = rung.reason.startswith(("no faster", "slower"))
            # Never for lack of memory: a cut that fits on its smallest size fits on all.
            assert slower or too_little or not whole
            continue
        assert rung.world == rung.nodes * inventory.node.processes
        assert fits(planned.memory, inventory.node)
        assert rung.data <= training.global_batch_sequences
        assert rung.accumulation >= rung.pipeline
        # Never a whole round of padding: it could have been left out.
        interleaved = rung.schedule == "Interleaved1F1B" and rung.pipeline > 1
        rounds = rung.pipeline if interleaved else 1
        assert rung.padding_sequences < rung.data * rung.micro_batch * rounds
        assert rung.accumulation % rounds == 0
        assert model.attention_heads % rung.tensor == 0
        assert model.key_value_heads % rung.tensor == 0
        assert inventory.node.processes % (rung.tensor * rung.context) == 0
        assert training.sequence_length % rung.context == 0
        assert rung.context == training.pinned.get("context", 1)
        assert model.layers % rung.stages == 0
        cut = Cut(rung.pipeline, rung.shard, rung.tensor, rung.context, rung.schedule)
        nodes = pieces_by_node(cut, rung.replicate, rung.processes_per_node)
        everything = set().union(*nodes)
        assert rung.state_copies == min(sum(piece in held for held in nodes) for piece in everything)


@given(questions())
@settings(deadline=None)
def test_the_same_question_has_the_same_answer(question: tuple[ModelShape, TrainingShape, Inventory]) -> None:
    assert answer(*question) == answer(*question)


@given(questions(), st.integers(1, 64))
@settings(deadline=None)
def test_more_memory_never_fits_less(
    question: tuple[ModelShape, TrainingShape, Inventory], more: int
) -> None:
    model, training, inventory = question
    path = answer(model, training, inventory)
    if path is None:
        return
    node = replace(inventory.node, memory_bytes=inventory.node.memory_bytes + (more << 20))
    roomier = plan(model, training, replace(inventory, node=node))
    assert _smallest_copy(roomier) <= _smallest_copy(path)


def _smallest_copy(path: PlanPath) -> int:
    pipeline, shard, tensor = path.rungs[0].rung.layout
    return pipeline * shard * tensor


@given(questions(), st.sampled_from([1, 2, 4]), st.integers(1, 3), st.booleans())
@settings(deadline=None)
def test_more_recomputation_never_needs_more(
    question: tuple[ModelShape, TrainingShape, Inventory], pipeline: int, size: int, shared: bool
) -> None:
    model, training, inventory = question
    if model.layers % (pipeline * STAGES_PER_RANK[training.schedule]) and pipeline > 1:
        return
    tensor = model.key_value_heads if shared else 1
    training = replace(training, sequence_parallel=shared)
    cut = Cut(pipeline, 2, tensor, training.context, training.schedule if pipeline > 1 else "1F1B")
    needs = [
        memory_bill(
            model,
            replace(training, activation_checkpointing=mode),
            inventory.node,
            cut,
            replicate=2,
            micro_batch=size,
            accumulation=pipeline,
        ).total
        for mode in ("None", "Selective", "Full")
    ]
    assert needs[0] >= needs[1] >= needs[2]


@given(questions())
@settings(deadline=None, max_examples=40)
def test_neighbours_can_always_be_told(question: tuple[ModelShape, TrainingShape, Inventory]) -> None:
    model, training, inventory = question
    path = answer(model, training, inventory)
    if path is None:
        return
    for near in nearby(model, training, inventory.node, path.rungs[-1].rung):
        assert near.why_not or near.weighed is not None
        if near.weighed is not None:
            assert near.weighed.memory.total > 0
            assert near.weighed.step_seconds > 0
            assert near.weighed.rung.state_copies > 0
            own = path.rungs[-1].rung
            assert near.weighed.rung.world in (own.world, own.nodes * inventory.node.processes)


def test_the_neighbours_of_a_pipeline_are_its_other_schedules_too() -> None:
    model, training = a_model(layers=4), a_training(pinned={"pipeline": 2}, compute_bytes=2)
    path = plan(model, training, machines(max_nodes=1))
    told = {near.name: near for near in nearby(model, training, machines().node, path.rungs[0].rung)}
    assert told["schedule Interleaved1F1B"].weighed is not None
    assert told["schedule ZBV"].why_not == "ZBV would add up gradients in half precision"
    full = told["recompute Full"].weighed
    assert full is not None
    assert full.memory.total < path.rungs[0].memory.total
    assert full.step_seconds > path.rungs[0].step_seconds


@pytest.mark.parametrize(
    ("pinned", "kind", "message"),
    [
        (
            {"tensor": 3},
            PlanInputError,
            "tensor 3 does not divide 4 attention heads (4 / 3 = 1.33); nearest that fits: 2",
        ),
        (
            {"tensor": 4},
            PlanInputError,
            "tensor 4 does not divide 2 key-value heads (2 / 4 = 0.50); nearest that fits: 2",
        ),
        (
            {"pipeline": 3},
            PlanInputError,
            "pipeline 3 does not divide 4 layers (4 / 3 = 1.33); nearest that fits: 4",
        ),
        (
            {"tensor": 2, "pipeline": 4},
            NothingFits,
            "data 1 x tensor 2 x pipeline 4 = 8 processes, but 2 nodes x 2 processes = 4 are available; "
            "nearest that fits: tensor 1 x pipeline 4",
        ),
    ],
    ids=["heads", "key-value heads", "layers", "product"],
)
def test_a_pin_that_cannot_be_is_answered_with_the_whole_equation(
    pinned: dict[str, int], kind: type[PlanError], message: str
) -> None:
    with pytest.raises(kind) as caught:
        plan(a_model(layers=4), a_training(pinned=pinned), machines())
    assert caught.value.message == message
    assert caught.value.fix
    assert caught.value.path.startswith("spec.parallelism.axes")


def test_the_exit_code_tells_a_wrong_question_from_too_small_machines() -> None:
    assert PlanInputError.exit_code == CliExit.BAD_INPUT
    assert NothingFits.exit_code == CliExit.NOTHING_FITS


def test_tensor_parallelism_does_not_leave_a_node() -> None:
    with pytest.raises(NothingFits, match="tensor 4 needs 4 processes in one node, but a node has 2"):
        plan(a_model(key_value_heads=4), a_training(pinned={"tensor": 4}), machines())


def test_tensor_2_pipeline_2_and_data_2_are_planned_together_with_tied_embeddings_too() -> None:
    pinned = {"tensor": 2, "pipeline": 2}
    for tied in (False, True):
        path = plan(a_model(tied_embeddings=tied), a_training(pinned=pinned), machines(a_node(4)))
        rung = path.rungs[-1].rung
        assert (rung.tensor, rung.pipeline, rung.data, rung.world) == (2, 2, 2, 8)


def test_a_schedule_of_two_stages_a_rank_needs_twice_the_layers() -> None:
    asked = a_training(pinned={"pipeline": 2}, schedule="ZBV")
    with pytest.raises(
        PlanInputError, match=r"pipeline 2 x 2 stages a rank \(ZBV\) = 4 stages do not divide 2"
    ):
        plan(a_model(), asked, machines())
    rung = plan(a_model(layers=4), asked, machines()).rungs[-1].rung
    assert (rung.schedule, rung.stages, rung.stages_of(0), rung.stages_of(1)) == ("ZBV", 4, (0, 3), (1, 2))


def test_interleaved_micro_batches_come_in_rounds_of_one_for_each_rank() -> None:
    asked = a_training(pinned={"pipeline": 2}, schedule="Interleaved1F1B", global_batch_sequences=5)
    rung = plan(a_model(layers=4), asked, machines(max_nodes=1)).rungs[-1].rung
    assert rung.accumulation % 2 == 0
    assert rung.data * rung.micro_batch * rung.accumulation - rung.padding_sequences == 5


def test_context_shares_a_sequence_among_processes_of_one_node() -> None:
    rung = plan(a_model(), a_training(pinned={"context": 2}), machines()).rungs[-1].rung
    assert (rung.context, rung.data, rung.world, rung.state_copies) == (2, 2, 4, 2)
    with pytest.raises(PlanInputError, match="context 3 does not divide 32 tokens of a sequence"):
        plan(a_model(), a_training(pinned={"context": 3}), machines(a_node(3)))
    with pytest.raises(PlanInputError, match="context 4 does not divide 2 processes of a node"):
        plan(a_model(), a_training(pinned={"context": 4}), machines())


def test_schedules_that_wait_less_keep_more() -> None:
    bubbles, kept = [], []
    for schedule in ("1F1B", "Interleaved1F1B", "ZBV"):
        asked = a_training(pinned={"pipeline": 4}, schedule=schedule)
        planned = plan(a_model(layers=8), asked, machines(a_node(4), max_nodes=1)).rungs[-1]
        bubbles.append(planned.bubble)
        kept.append([Cut(4, 1, 1, schedule=schedule).in_flight(rank) for rank in range(4)])
    assert bubbles[0] > bubbles[1] > bubbles[2]
    assert kept == [[4, 3, 2, 1], [5.5, 4.5, 3.5, 2.5], [4, 4, 4, 4]]


def test_a_sequence_longer_than_the_positions_of_the_model_is_refused() -> None:
    with pytest.raises(PlanInputError, match="64 is more than the 32 positions"):
        plan(a_model(max_position_embeddings=32), a_training(sequence_length=64), machines())


def test_pins_are_kept_though_less_would_do() -> None:
    path = plan(a_model(), a_training(pinned={"tensor": 2}), machines())
    assert {planned.rung.layout for planned in path.rungs} == {(1, 1, 2)}
    assert "tensor 2 pinned" in path.reason


def test_a_batch_with_less_than_a_sequence_for_each_data_rank_is_refused() -> None:
    with pytest.raises(PlanInputError) as caught:
        plan(a_model(key_value_heads=1), a_training(global_batch_sequences=2), machines(a_node(processes=4)))
    assert caught.value.path == "spec.training.globalBatch"
    assert "nearest that fits: 4" in caught.value.message


def test_a_size_at_which_ranks_have_as_much_to_do_as_on_a_smaller_one_is_useless() -> None:
    path = plan(a_model(), a_training(global_batch_sequences=8), machines(max_nodes=5))
    assert [planned.rung.useful for planned in path.rungs] == [True, True, False, True, False]
    assert "too small for 10 data ranks" in path.rungs[4].rung.reason

    path = plan(a_model(), a_training(global_batch_sequences=12), machines(max_nodes=5))
    assert [planned.rung.useful for planned in path.rungs] == [True, True, True, False, False]
    assert path.rungs[3].rung.reason == "no faster than 3 nodes: 2 sequences a rank either way"


def test_tensor_parallelism_is_taken_where_it_lets_a_small_batch_use_more_machines_faster() -> None:
    path = plan(
        LLAMA_3_8B, a_training(sequence_length=1024, global_batch_sequences=16), machines(h100_node(), 1, 8)
    )
    assert path.rungs[-1].rung.useful
    assert path.rungs[-1].rung.tensor == 4
    assert "too small to keep 8 nodes busy" in path.reason


def test_a_path_of_64_sizes_of_eight_accelerators_has_a_copy_on_each_node() -> None:
    path = plan(
        LLAMA_3_8B,
        a_training(sequence_length=4096, global_batch_sequences=1024),
        machines(h100_node(), 1, 64),
    )
    assert len(path.rungs) == 64
    assert [planned.rung.state_copies for planned in path.rungs] == list(range(1, 65))


def test_sequence_parallelism_keeps_fewer_activations_and_needs_tokens_that_divide() -> None:
    pinned = {"tensor": 2}
    whole, shared = (
        plan(a_model(), a_training(pinned=pinned, sequence_parallel=asked), machines(max_nodes=1)).rungs[-1]
        for asked in (False, True)
    )
    assert (whole.rung.sequence_parallel, shared.rung.sequence_parallel) == (False, True)
    assert shared.memory.activations < whole.memory.activations
    odd = a_training(pinned=pinned, sequence_parallel=True, sequence_length=31)
    with pytest.raises(PlanInputError, match=r"tensor 2 x context 1 = 2 ranks do not divide the 31 tokens"):
        plan(a_model(), odd, machines())
