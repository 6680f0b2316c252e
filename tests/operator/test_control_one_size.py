"""A run whose plan has one size, as those of the engine DeepSpeed have: it waits for its nodes, and says why."""

from __future__ import annotations

from dataclasses import replace

from tests.operator.control_builders import START, a_revision, a_run, a_spec, condition, kinds, written
from tests.operator.test_control_decide import training_view

from trainingrun.control.decide import decide
from trainingrun.protocol.records import NATIVE

NOW = START + 205.0


def a_run_short_of_a_node(engine: str, most: int = 2) -> a_run:
    """Planned for two nodes; one was lost, and nothing takes its seat yet."""
    spec = a_spec(minNodes=2, maxNodes=most)
    run = a_run(spec).with_nodes(2, dead=(1,)).pod(0).epoch(1)
    revision = a_revision(spec)
    two = replace(revision.rungs[1], engine=engine, zero_stage=2 if engine != NATIVE else 0)
    run.revision = replace(revision, rungs=(two,))
    return run.seen_by_membership(training_view(slots=(0,), waiting_for="1 of minNodes 2 are ready"))


def test_it_waits_for_the_node_and_says_that_it_cannot_go_on_with_fewer() -> None:
    decision = decide(a_run_short_of_a_node("DeepSpeed").observed(), NOW)
    ready = condition(written(decision), "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "WaitingForNodes")
    assert (
        "1 of at least 2 nodes are there, and a run of this engine does not go on with fewer"
        in ready["message"]
    )
    assert "CreatePod" in kinds(decision), "the seat is filled anew"


def test_a_run_of_the_engine_native_is_only_told_the_numbers() -> None:
    ready = condition(written(decide(a_run_short_of_a_node(NATIVE).observed(), NOW)), "Ready")
    assert ready["reason"] == "WaitingForNodes"
    assert "this engine" not in ready["message"]


def test_a_larger_number_of_nodes_makes_no_seat_that_the_plan_has_no_place_for() -> None:
    """Where no API server has refused it: a file edited by hand."""
    run = a_run_short_of_a_node("DeepSpeed", most=4).pod(1).with_nodes(4)
    assert "CreatePod" not in kinds(decide(run.observed(), NOW))
