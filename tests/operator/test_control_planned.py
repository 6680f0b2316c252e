"""What status says of the plan: the Planned condition with its reason, and the block of the present size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.operator.control_builders import NOW, a_run, condition, written
from tests.operator.test_control_measured import planned_revision

from trainingrun.control.decide import decide
from trainingrun.control.planned import plan_block
from trainingrun.protocol.records import Revision


def status_of(revision: Revision) -> dict[str, Any]:
    run = a_run()
    run.revision = revision
    return written(decide(run.observed(), NOW))


def test_planned_says_which_sizes_there_are_and_why_the_model_is_cut_so() -> None:
    found = condition(status_of(planned_revision()), "Planned")
    assert (found["status"], found["reason"]) == ("True", "Planned")
    assert found["message"].startswith("1 to 2 nodes; tensor 1, pipeline 1: data parallelism alone fits")


def test_sizes_that_are_of_no_use_are_named_and_many_are_counted() -> None:
    revision = planned_revision()
    small, large = revision.rungs
    useless = replace(large, useful=False, reason="would be idle")
    message = condition(status_of(replace(revision, rungs=(small, useless))), "Planned")["message"]
    assert message.startswith("1 to 2 nodes (of no use: 2); ")
    many = tuple(replace(useless, nodes=nodes) for nodes in range(2, 30))
    message = condition(status_of(replace(revision, rungs=(small, *many))), "Planned")["message"]
    assert message.startswith("1 to 29 nodes (of no use: 2, 3, 4, 5, 6, 7, 8, 9 and 20 more); ")


def test_memory_of_a_process_is_without_what_its_snapshots_take_on_the_host() -> None:
    revision = planned_revision()
    plan = dict(revision.plan)
    plan["rungs"] = [{**item, "memory": {**item["memory"], "host": 1 << 40}} for item in plan["rungs"]]
    run = a_run()
    run.revision = replace(revision, plan=plan)
    block = plan_block(run.observed(), run.revision)
    assert block["memoryMiB"] == status_of(revision)["plan"]["memoryMiB"] < 1 << 20


def test_a_plan_once_frozen_is_told_as_it_is_whatever_the_planner_would_say_now() -> None:
    old = replace(planned_revision(), planner_version="0.0.1", plan={"reason": "as it was"})
    status = status_of(old)
    assert status["resolved"]["planner"] == "0.0.1"
    assert status["plan"]["reason"] == "as it was"
    assert condition(status, "Planned")["message"] == "1 to 2 nodes; as it was"
