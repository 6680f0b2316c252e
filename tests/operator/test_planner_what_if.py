"""What other layouts would cost, those of experts first of all: exact, ordered, and within the rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.cost_builders import LLAMA_8B, MIXTRAL

from trainingrun.planner.cost.fit import fits
from trainingrun.planner.cost.frameworks import framework
from trainingrun.planner.cost.memory import fullest, peak_memory
from trainingrun.planner.cost.types import Layout, Recompute
from trainingrun.planner.hardware.machine import machine
from trainingrun.planner.what_if import NEARLY, Question, answers, bound, layouts, what_if

SMALL_MIXTRAL = replace(MIXTRAL, layers=8, hidden_size=2048, intermediate_size=4096, head_dim=64)
MODELS = [SMALL_MIXTRAL, replace(LLAMA_8B, layers=6)]


def a_question(**given: object) -> Question:
    question = Question(SMALL_MIXTRAL, 2048, 64, machine("H100-SXM-80GB", 8), 1)
    return replace(question, **given)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    return a_question(
        model=draw(st.sampled_from(MODELS)),
        global_batch=draw(st.sampled_from([8, 48, 64])),
        nodes=draw(st.sampled_from([1, 2])),
        context=draw(st.sampled_from([1, 1, 2])),
        machine=machine(draw(st.sampled_from(["H100-SXM-80GB", "A100-SXM4-40GB"])), 8),
        framework=framework(draw(st.sampled_from(["megatron", "native"]))),
    )


@given(questions())
@settings(deadline=None, max_examples=6)
def test_nothing_that_is_left_out_is_faster_or_nearly_as_fast(question: Question) -> None:
    every = [cost for layout in layouts(question) for cost, _ in answers(question, layout)]
    outcome = what_if(question)
    expected = sorted(cost for cost in every if cost <= NEARLY * min(every)) if every else []
    assert [cost for cost, _ in outcome.near] == expected


@given(questions())
@settings(deadline=None, max_examples=6)
def test_a_bound_is_never_above_what_it_bounds_and_axes_multiply_to_the_world(question: Question) -> None:
    slopes: dict[tuple[int, int, int, Recompute], float] = {}
    for layout in layouts(question):
        assert layout.tensor * layout.pipeline * layout.context * layout.data == question.world
        assert (layout.data * layout.context * layout.tensor) % layout.expert == 0
        least = bound(question, layout, slopes)
        for cost, answer in answers(question, layout):
            assert least <= cost * (1 + 1e-9)
            assert fits(answer.bill, question.machine)
            used = answer.layout
            assert used.data * used.micro_batch * used.accumulation == question.global_batch
            assert used.accumulation >= used.pipeline


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_more_recomputation_never_needs_more(data: st.DataObject) -> None:
    question = data.draw(questions())
    allowed = [layout for layout in layouts(question) if layout.recompute is Recompute.NONE]
    layout = replace(data.draw(st.sampled_from(allowed)), accumulation=8)
    needs = [
        fullest(peak_memory(question.workload(replace(layout, recompute=mode)))).allocated
        for mode in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    ]
    assert needs[0] >= needs[1] >= needs[2]


def test_only_shapes_with_experts_have_expert_ranks() -> None:
    def degrees(question: Question) -> set[int]:
        return {layout.expert for layout in layouts(question)}

    assert degrees(a_question()) == {1, 2, 4, 8}
    assert degrees(a_question(model=LLAMA_8B)) == {1}


def test_the_same_question_has_the_same_answer_and_the_first_is_the_fastest() -> None:
    first, second = what_if(a_question()), what_if(a_question())
    assert first == second
    assert first.best is not None
    assert first.best[0] == min(cost for cost, _ in first.near)
    assert first.opened < first.groups


def test_where_nothing_fits_there_is_no_answer() -> None:
    tiny = replace(machine("H100-SXM-80GB", 8), memory_bytes=1 << 30)
    outcome = what_if(a_question(machine=tiny))
    assert outcome.best is None
    assert outcome.near == ()


@pytest.mark.parametrize("asked", [1, 2, 4])
def test_context_ranks_are_those_that_were_asked_for(asked: int) -> None:
    found = list(layouts(a_question(context=asked)))
    assert found
    assert {layout.context for layout in found} == {asked}
    assert all(isinstance(layout, Layout) for layout in found)
