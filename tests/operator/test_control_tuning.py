"""When measurements give a run a further revision: same spec and axes, another micro-batch, for later epochs only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.control_builders import NOW, InstantPlans, a_run, an_epoch, created, kinds, written
from tests.operator.test_control_measured import planned_revision, summary

from trainingrun.control import reconcile
from trainingrun.control.decide import decide
from trainingrun.control.effects import CreateRevision, Decision
from trainingrun.control.refusal_book import RefusalBook
from trainingrun.ports import Conflict
from trainingrun.protocol.records import RankExit, Revision, Rung

LATER = NOW + 300.0


def a_slow_revision() -> Revision:
    """A run whose two nodes train with a micro-batch of 1, which the planner would not have chosen."""
    revision = planned_revision()
    rung = revision.rungs[1]
    small = replace(rung, micro_batch=1, accumulation=32 // rung.data, padding_sequences=0)
    plan = dict(revision.plan)
    plan["rungs"] = [
        plan["rungs"][0],
        {**plan["rungs"][1], "rung": {**plan["rungs"][1]["rung"], "microBatch": 1}},
    ]
    return replace(revision, rungs=(revision.rungs[0], small), plan=plan)


def story(
    revision: Revision, *, looks: int = 1, steps: int = 100, exits: tuple[RankExit, ...] = (), **changes: Any
) -> Decision:
    """Epoch 1 trained on two nodes and ended; epoch 2 is new."""
    run = a_run().pod(0).pod(1)
    run.revision = revision
    rung: Rung = changes.get("rung", revision.rungs[1])
    run.records = [
        replace(an_epoch(1), rung=rung),
        replace(an_epoch(2, exits=exits), rung=rung, previous=summary(1, steps=steps)),
    ]
    tuning = {"nodes": 2, "microBatch": 1, "recompute": "None", "looks": looks}
    run.status_is(
        {
            "disruptions": {"accountedEpoch": 1},
            "progress": {"totalSteps": 10_000},
            "accounting": {"tuning": tuning} if looks else {},
        }
    )
    return decide(run.observed(), LATER)


def further(decision: Decision) -> list[Revision]:
    return [effect.revision for effect in decision.effects if isinstance(effect, CreateRevision)]


def test_a_better_micro_batch_that_was_found_twice_is_taken_by_a_further_revision() -> None:
    revision = a_slow_revision()
    decision = story(revision)
    (second,) = further(decision)
    assert (second.name, second.revision) == ("demo-r2", 2)
    assert second.rungs[0] == revision.rungs[0]
    assert second.rungs[1].micro_batch > 1
    assert second.rungs[1].layout == revision.rungs[1].layout
    assert (second.spec, second.pod_template) == (revision.spec, revision.pod_template)
    assert second.nonce != revision.nonce
    assert second.plan["rungs"][1]["rung"]["microBatch"] == second.rungs[1].micro_batch
    assert created(decision) == []
    assert "tuning" not in written(decision)["accounting"]


def test_the_first_time_it_is_only_remembered() -> None:
    decision = story(a_slow_revision(), looks=0)
    assert further(decision) == []
    assert written(decision)["accounting"]["tuning"] == {
        "nodes": 2,
        "microBatch": 1,
        "recompute": "None",
        "looks": 1,
    }


def test_a_plan_that_is_as_good_as_any_is_left_alone() -> None:
    assert further(story(planned_revision())) == []


def test_few_measured_steps_change_nothing() -> None:
    assert further(story(a_slow_revision(), steps=20)) == []


def test_a_plan_of_another_planner_is_left_alone() -> None:
    assert further(story(replace(a_slow_revision(), planner_version="0.0.1"))) == []


def test_an_epoch_that_did_not_train_by_the_newest_revision_says_nothing_of_it() -> None:
    revision = a_slow_revision()
    assert further(story(revision, rung=replace(revision.rungs[1], micro_batch=2))) == []


def test_a_run_that_ran_out_of_memory_takes_less_at_once_and_never_goes_back() -> None:
    revision = planned_revision()
    killed = (RankExit(0, 0, 1, "RuntimeError: DefaultCPUAllocator: can't allocate memory: out of memory"),)
    decision = story(revision, looks=0, steps=3, exits=killed)
    (second,) = further(decision)
    assert second.rungs[1].micro_batch < revision.rungs[1].micro_batch
    assert second.plan["rungs"][1]["tried"] == [[revision.rungs[1].micro_batch, "None"]]
    look = story(second, looks=1)
    assert all(one.rungs[1].micro_batch != revision.rungs[1].micro_batch for one in further(look))


def test_without_a_new_record_nothing_is_judged() -> None:
    run = a_run().pod(0).pod(1)
    run.revision = a_slow_revision()
    run.records = [replace(an_epoch(1), rung=run.revision.rungs[1])]
    run.status_is({"disruptions": {"accountedEpoch": 1}})
    assert "CreateRevision" not in kinds(decide(run.observed(), LATER))


class Taken:
    """A cluster where the name of that record is taken."""

    def create(self, record: Revision) -> None:
        raise Conflict(record.name)


def test_a_name_that_is_taken_keeps_a_run_from_nothing() -> None:
    port: Any = Taken()
    decision = story(a_slow_revision())
    run = a_run()
    run.revision = a_slow_revision()
    observed = run.observed()
    wanted = replace(decision, effects=[one for one in decision.effects if isinstance(one, CreateRevision)])
    assert reconcile._change(port, observed, InstantPlans(), RefusalBook(), wanted, LATER) is None
    first = replace(observed, revision=None)
    with pytest.raises(Conflict):
        reconcile._change(port, first, InstantPlans(), RefusalBook(), wanted, LATER)
