"""The search for the fastest cut finds what looking at everything finds, and its plans obey the rules."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
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

from trainingrun.planner.best_first import best_first
from trainingrun.planner.errors import PlanError
from trainingrun.planner.fastest import (
    NEARLY,
    all_groups,
    fastest,
    group_bound,
    group_seconds,
    weighed,
)
from trainingrun.planner.memory import fits
from trainingrun.planner.rules import refusal
from trainingrun.planner.search import plan
from trainingrun.planner.types import Inventory, ModelShape, NodeShape, TrainingShape
from trainingrun.protocol.records import STAGES_PER_RANK

Question = tuple[ModelShape, TrainingShape, Inventory]


@st.composite
def nodes(draw: st.DrawFn) -> NodeShape:
    """H100s, or unknown accelerators with slow links, which a catalogue does not have."""
    memory = draw(st.sampled_from([1, 8, 24, 80])) * GIB
    if draw(st.booleans()):
        return replace(h100_node(), memory_bytes=8 * memory, host_memory_bytes=0)
    processes = draw(st.sampled_from([1, 2, 4, 8]))
    return a_node(
        processes,
        memory,
        device="nvidia.com/gpu",
        flops_per_second=draw(st.sampled_from([1e12, 4e14])),
        link_bytes_per_second=draw(st.sampled_from([1e8, 1e10, 4e11])),
        local_link_bytes_per_second=draw(st.sampled_from([1e10, 4e11])),
        memory_bytes_per_second=1e12,
    )


@st.composite
def questions(draw: st.DrawFn) -> Question:
    heads = draw(st.sampled_from([4, 8, 12]))
    model = a_model(
        attention_heads=heads,
        key_value_heads=draw(st.sampled_from([1, 2, heads])),
        head_dim=128,
        hidden_size=128 * heads,
        intermediate_size=draw(st.sampled_from([1024, 3072, 8192])),
        layers=draw(st.sampled_from([1, 4, 6, 16])),
        vocabulary_size=draw(st.sampled_from([512, 32000])),
        tied_embeddings=draw(st.booleans()),
    )
    training = a_training(
        sequence_length=draw(st.sampled_from([128, 2048])),
        global_batch_sequences=draw(st.sampled_from([1, 8, 24, 100, 256])),
        compute_bytes=draw(st.sampled_from([2, 4])),
        activation_checkpointing=draw(st.sampled_from(["Auto", "None", "Full"])),
        any_schedule=draw(st.booleans()),
        pinned=draw(st.sampled_from([{}, {}, {"tensor": 2}, {"context": 2}, {"pipeline": 2}])),
    )
    least = draw(st.integers(1, 6))
    return model, training, Inventory(draw(nodes()), least, least + draw(st.sampled_from([0, 0, 1, 5])))


@given(questions())
@settings(deadline=None, max_examples=60)
def test_nothing_that_is_left_out_is_faster_or_nearly_as_fast(question: Question) -> None:
    model, training, inventory = question
    groups = all_groups(model, training, inventory)
    every = [(group_seconds(model, inventory, group), group) for group in groups]
    possible = [(seconds, group) for seconds, group in every if seconds is not None]
    outcome = weighed(model, inventory, groups)
    if not possible:
        assert outcome.best is None
        return
    least = min(seconds for seconds, _ in possible)
    expected = sorted((entry for entry in possible if entry[0] <= NEARLY * least), key=lambda entry: entry[0])
    assert [seconds for seconds, _ in outcome.near] == [seconds for seconds, _ in expected]
    assert {id(group) for _, group in outcome.near} == {id(group) for _, group in expected}
    assert outcome.opened <= outcome.groups == len(groups)


@given(questions())
@settings(deadline=None, max_examples=60)
def test_a_bound_is_never_above_what_it_bounds(question: Question) -> None:
    model, _, inventory = question
    for group in all_groups(*question):
        seconds = group_seconds(model, inventory, group)
        if seconds is not None:
            assert group_bound(model, inventory, group) <= seconds * (1 + 1e-9)


@given(questions())
@settings(deadline=None, max_examples=80)
def test_every_plan_for_accelerators_obeys_the_rules(question: Question) -> None:
    model, training, inventory = question
    try:
        path = plan(*question)
    except PlanError:
        return
    processes = inventory.node.processes
    assert len({planned.rung.layout for planned in path.rungs}) == 1
    for planned in path.rungs:
        rung = planned.rung
        if not rung.useful:
            assert rung.reason
            continue
        world = rung.replicate * rung.pipeline * rung.shard * rung.context * rung.tensor
        assert world == rung.world == rung.nodes * processes
        used = replace(training, schedule=rung.schedule)
        assert not refusal(model, used, processes, tensor=rung.tensor, pipeline=rung.pipeline)
        assert (
            model.layers % (rung.pipeline * (STAGES_PER_RANK[rung.schedule] if rung.pipeline > 1 else 1)) == 0
        )
        assert fits(planned.memory, inventory.node)
        assert rung.accumulation >= rung.pipeline
        computed = rung.data * rung.micro_batch * rung.accumulation
        assert computed == training.global_batch_sequences + rung.padding_sequences
        assert 1 <= rung.state_copies <= rung.nodes
        for axis, degree in training.pinned.items():
            assert getattr(rung, axis) == degree
        if training.activation_checkpointing != "Auto":
            assert rung.activation_checkpointing == training.activation_checkpointing


@given(questions())
@settings(deadline=None, max_examples=40)
def test_the_same_question_has_the_same_answer(question: Question) -> None:
    assert fastest(*question) == fastest(*question)


@given(questions(), st.integers(1, 64))
@settings(deadline=None, max_examples=60)
def test_with_more_memory_whatever_fitted_still_fits_and_nothing_gets_slower(
    question: Question, more: int
) -> None:
    model, training, inventory = question
    before = fastest(*question)
    if before is None:
        return
    node = replace(inventory.node, memory_bytes=inventory.node.memory_bytes + more * GIB)
    after = fastest(model, training, replace(inventory, node=node))
    assert after is not None
    # A copy may now fill more sizes; with as many as before, the fastest is at least as fast.
    if after.groups == before.groups:
        assert after.least <= before.least


@given(
    st.lists(st.lists(st.floats(0.1, 100.0), max_size=5), max_size=12),
    st.floats(0.1, 1.0),
    st.floats(1.0, 2.0),
)
def test_best_first_finds_all_that_are_near_whatever_the_bounds(
    groups: list[list[float]], tightness: float, near: float
) -> None:
    outcome = best_first(
        groups,
        lambda group: tightness * min(group, default=1000.0),
        lambda group: ((cost, cost) for cost in group),
        near=near,
    )
    every = [cost for group in groups for cost in group]
    expected = sorted(cost for cost in every if cost <= near * min(every)) if every else []
    assert [cost for cost, _ in outcome.near] == expected


def test_a_run_that_may_be_one_node_gets_copies_of_one_node() -> None:
    training = a_training(sequence_length=4096, global_batch_sequences=1024, compute_bytes=2)
    path = plan(LLAMA_3_8B, training, machines(h100_node(), 1, 16))
    assert all(path.rungs[nodes - 1].rung.useful for nodes in (1, 2, 4, 8, 16))
    assert [planned.rung.state_copies for planned in path.rungs] == list(range(1, 17))


def test_large_models_are_cut_over_several_nodes_only_where_one_cannot_hold_them() -> None:
    training = a_training(
        sequence_length=4096, global_batch_sequences=512, compute_bytes=2, activation_checkpointing="Auto"
    )
    node = replace(h100_node(), host_memory_bytes=0)
    path = plan(LLAMA_2_70B, training, machines(node, 8, 8))
    (planned,) = path.rungs
    assert planned.rung.useful
    assert planned.rung.pipeline * planned.rung.shard * planned.rung.tensor > 8
    assert "a step on 8 nodes" in path.reason


def test_of_nearly_equal_cuts_the_one_with_more_copies_is_taken() -> None:
    model, training = (
        LLAMA_3_8B,
        a_training(sequence_length=4096, global_batch_sequences=512, compute_bytes=2),
    )
    inventory = machines(h100_node(), 16, 16)
    choice = fastest(model, training, inventory)
    assert choice is not None
    near = weighed(model, inventory, all_groups(model, training, inventory)).near
    assert choice.candidate.units == min(group.units for _, group in near)
    assert choice.seconds <= NEARLY * choice.least
