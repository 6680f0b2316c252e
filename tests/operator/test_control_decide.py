"""decide: one test for each step and rule."""

from __future__ import annotations

from dataclasses import replace

from tests.operator.control_builders import (
    NOW,
    START,
    a_pod,
    a_run,
    a_spec,
    condition,
    created,
    deleted,
    done,
    failed,
    kinds,
    told,
    training_view,
    with_status,
    written,
)
from tests.operator.fake_port import a_rung

from trainingrun.api.status import read_status
from trainingrun.control.decide import decide
from trainingrun.control.effects import CreateRevision
from trainingrun.control.observed import PlanFailure, PlanPending, PlanResult
from trainingrun.ports import PodPhase
from trainingrun.protocol.messages import AgentPhase, MemberView
from trainingrun.protocol.records import EpochSummary

PLAN = PlanResult((a_rung(1), a_rung(2)), {"reason": "fits"}, "0.1.0", "data parallel only")


# ---- before the start


def test_a_run_that_is_being_deleted_is_left_alone():
    assert kinds(decide(a_run().pod(0).is_deleted().observed(), NOW)) == []


def test_an_invalid_spec_is_said_in_status_and_creates_nothing():
    decision = decide(a_run().unplanned().invalid("spec.model: missing").observed(), NOW)
    assert kinds(decision) == ["WriteStatus", "EmitEvent"]
    ready, stalled = (condition(written(decision), kind) for kind in ("Ready", "Stalled"))
    assert (ready["status"], ready["reason"], ready["message"]) == (
        "False",
        "InvalidSpec",
        "spec.model: missing",
    )
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")


def test_an_invalid_edit_does_not_touch_a_run_that_trains():
    run = a_run().pod(0).pod(1).epoch(1).invalid()
    decision = decide(run.observed(), NOW)
    assert "DeletePod" not in kinds(decision)
    ready = condition(written(decision), "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert "goes on with demo-r1" in ready["message"]


def test_a_new_run_is_planned_first():
    decision = decide(a_run().unplanned().observed(), NOW)
    assert kinds(decision) == ["MakePlan", "WriteStatus"]
    assert condition(written(decision), "Ready")["reason"] == "Planning"


def test_a_plan_in_the_making_is_waited_for():
    first = decide(a_run().unplanned().observed(), NOW)
    again = with_status(a_run().unplanned(PlanPending()), first)
    assert kinds(decide(again.observed(), NOW)) == []


def test_a_plan_is_frozen_in_a_revision():
    decision = decide(a_run().unplanned(PLAN).observed(), NOW)
    revision = next(effect.revision for effect in decision.effects if isinstance(effect, CreateRevision))
    assert (revision.name, revision.run_uid, revision.revision) == ("demo-r1", "uid-demo", 1)
    assert revision.rungs == PLAN.rungs
    assert revision.spec == a_spec()
    assert revision.nonce
    assert "demo-r1: data parallel only" in told(decision)


def test_a_run_whose_revision_was_deleted_is_never_planned_anew():
    began = with_status(
        a_run().pod(0).pod(1).epoch(1), decide(a_run().pod(0).pod(1).epoch(1).observed(), NOW)
    )
    for records in (began, a_run().status_is(began.status)):  # its epochs are there, or are gone too
        decision = decide(records.unplanned(PLAN).observed(), NOW)
        assert kinds(decision) == ["WriteStatus", "EmitEvent"]
        status = written(decision)
        assert condition(status, "Stalled")["reason"] == "RevisionMissing"
        assert "demo-r1" in condition(status, "Ready")["message"]
        assert status["resolved"]["revision"] == "demo-r1"
        again = decide(with_status(records.unplanned(PLAN), decision).observed(), NOW + 60)
        assert "CreateRevision" not in kinds(again)
        assert "DeletePod" not in kinds(again)


def test_the_same_plan_gives_the_same_revision():
    first, second = (decide(a_run().unplanned(PLAN).observed(), at) for at in (NOW, NOW + 9))
    assert first.effects[0] == second.effects[0]


def test_a_plan_that_fits_nowhere_stalls_the_run_without_failing_it():
    decision = decide(a_run().unplanned(PlanFailure("needs 90 GiB, there are 8")).observed(), NOW)
    status = written(decision)
    assert condition(status, "Stalled")["reason"] == "PlanInfeasible"
    assert condition(status, "Planned")["message"] == "needs 90 GiB, there are 8"
    assert condition(status, "Failed")["status"] == "False"


def test_every_condition_is_set_on_the_first_visit():
    status = written(decide(a_run().unplanned().observed(), NOW))
    types = {item["type"] for item in status["conditions"]}
    assert types == {
        "Ready",
        "Reconciling",
        "Stalled",
        "Planned",
        "CheckpointFresh",
        "Complete",
        "Failed",
    }
    assert all(item["observedGeneration"] == 1 for item in status["conditions"])


# ---- the end


def test_a_final_termination_completes_the_run():
    run = a_run().pod(0, done(export="file:///models/demo")).pod(1).epoch(1)
    decision = decide(run.observed(), NOW)
    status = written(decision)
    assert condition(status, "Complete")["status"] == "True"
    assert condition(status, "Ready")["status"] == "True"
    assert condition(status, "Reconciling")["status"] == "False"
    assert status["progress"]["step"] == 300
    assert status["output"] == {"export": "file:///models/demo"}
    assert created(decision) == []


def test_a_complete_run_still_tells_when_its_last_epoch_began_to_step():
    """Membership may have forgotten it already, and no record follows."""
    for view in (training_view(step=299, first_step_at=START + 3), None):
        summary = EpochSummary(1, START + 3, 1, 300, NOW - 1, 300 * 4096, 0.1)
        over = done(export="file:///models/demo")
        over["termination"] = replace(over["termination"], summary=summary)
        run = a_run().pod(0, over).pod(1).epoch(1)
        if view is not None:
            run.seen_by_membership(view)
        status = written(decide(run.observed(), NOW))
        assert condition(status, "Complete")["status"] == "True"
        stepping = status["accounting"]["stepping"]
        assert (stepping["epoch"], stepping["firstStepAtMillis"]) == (1, round((START + 3) * 1000))
        assert stepping["lastStep"] == 300


def test_a_failed_run_still_tells_when_its_last_epoch_began_to_step():
    run = a_run().pod(0).pod(1).epoch(1).seen_by_membership(training_view(first_step_at=START + 3))
    run = with_status(run, decide(run.observed(), NOW))
    ended = a_run().pod(0, failed(64, "BadConfiguration", "no such file")).epoch(1)
    status = written(decide(ended.status_is(run.observed().run.status).observed(), NOW + 1))
    assert condition(status, "Failed")["status"] == "True"
    assert status["accounting"]["stepping"]["firstStepAtMillis"] == round((START + 3) * 1000)


def test_ending_before_the_last_step_is_no_completion():
    run = a_run().pod(0, done(step=299, export="file:///models/demo")).pod(1).epoch(1)
    assert condition(written(decide(run.observed(), NOW)), "Complete")["status"] == "False"


def test_ending_without_the_export_is_no_completion():
    run = a_run().pod(0, done()).pod(1).epoch(1)
    assert condition(written(decide(run.observed(), NOW)), "Complete")["status"] == "False"


def test_a_run_that_is_over_recreates_nothing_and_removes_what_runs():
    run = a_run().pod(0, done(export="file:///models/demo")).pod(1).epoch(1)
    over = with_status(run, decide(run.observed(), NOW))
    decision = decide(over.observed(), NOW + 60)
    assert kinds(decision) == ["DeletePod"]
    assert deleted(decision) == ["demo-1-0"]
    over.pods.clear()
    assert kinds(decide(over.observed(), NOW + 120)) == []


def test_the_last_pods_of_a_complete_run_may_end_by_themselves():
    run = a_run().pod(0, done(export="file:///models/demo")).pod(1).epoch(1)
    over = with_status(run, decide(run.observed(), NOW))
    decision = decide(over.observed(), NOW + 5)
    assert kinds(decision) == []
    assert decision.revisit_at is not None and NOW + 5 < decision.revisit_at <= NOW + 15


def test_a_bad_configuration_fails_the_run_at_once():
    run = a_run().pod(0, failed(64, "BadConfiguration", "spec.data.sources[0].uri: no such file")).epoch(1)
    decision = decide(run.observed(), NOW)
    status = written(decision)
    assert condition(status, "Failed")["reason"] == "BadConfiguration"
    assert condition(status, "Stalled")["status"] == "True"
    assert status["failure"] == {
        "cause": "Application",
        "slot": 0,
        "node": "node-0",
        "exitCode": 64,
        "message": "spec.data.sources[0].uri: no such file",
    }
    assert created(decision) == []


def test_a_checkpoint_location_of_another_run_fails_the_run_with_a_reason_of_its_own():
    message = "spec.checkpoint.location.uri: it holds the checkpoints of run other"
    run = a_run().pod(0, failed(64, "LocationInUse", message)).epoch(1)
    status = written(decide(run.observed(), NOW))
    for kind in ("Failed", "Stalled"):
        assert condition(status, kind)["reason"] == "LocationInUse"
    assert condition(status, "Failed")["message"] == message


def test_no_usable_checkpoint_fails_the_run_at_once():
    run = a_run().pod(0, failed(66, "NoUsableCheckpoint", "3 checkpoints, all damaged")).epoch(1)
    assert (
        condition(written(decide(run.observed(), NOW)), "Failed")["message"] == "3 checkpoints, all damaged"
    )


def test_a_block_that_membership_reports_stalls_the_run_and_does_not_end_it():
    view = training_view(blocked="NoUsableCheckpoint: 3 checkpoints, none can be used")
    run = a_run().pod(0).pod(1).epoch(1).seen_by_membership(view)
    status = written(decide(run.observed(), NOW))
    assert condition(status, "Failed")["status"] == "False"
    assert condition(status, "Ready")["reason"] == "NoUsableCheckpoint"
    stalled = condition(status, "Stalled")
    assert (stalled["status"], stalled["message"]) == ("True", "3 checkpoints, none can be used")
    mended = a_run().pod(0).pod(1).epoch(1, at=START + 2).seen_by_membership(training_view())
    status = written(decide(mended.status_is(status).observed(), NOW))
    assert condition(status, "Stalled")["status"] == "False"
    assert condition(status, "Ready")["reason"] == "Training"


# ---- states


def test_a_run_that_trains_is_ready():
    run = a_run().pod(0).pod(1).epoch(1, at=START + 2).seen_by_membership(training_view())
    status = written(decide(run.observed(), NOW))
    ready = condition(status, "Ready")
    assert (ready["status"], ready["reason"], ready["message"]) == ("True", "Training", "2 of 2 nodes")
    assert condition(status, "Reconciling")["status"] == "False"
    assert status["membership"]["summary"] == "2/2"
    assert status["progress"]["loss"] == "3.25"
    assert status["checkpoint"]["memoryStep"] == 119
    assert read_status(status).plan is not None


def test_a_run_at_a_smaller_size_is_ready_and_growing():
    view = training_view(slots=(0,))
    run = a_run().pod(0).pod(1, {"phase": PodPhase.PENDING}).epoch(1, slots=(0,)).seen_by_membership(view)
    status = written(decide(run.observed(), NOW))
    assert condition(status, "Ready")["message"] == "1 of 2 nodes"
    assert condition(status, "Reconciling")["reason"] == "Growing"


def test_a_size_beyond_the_frozen_plan_is_said():
    run = a_run(a_spec(maxNodes=4)).pod(0).pod(1).epoch(1).seen_by_membership(training_view())
    message = condition(written(decide(run.observed(), NOW)), "Ready")["message"]
    assert message == "2 of 2 nodes; the plan of demo-r1 ends there, spec.scale.maxNodes is 4"


def test_a_pause_for_a_newcomer_is_no_recovery():
    view = training_view(slots=(0,))
    paused = replace(view.members[0], phase=AgentPhase.PAUSED)
    newcomer = MemberView(1, 0, "node-1", AgentPhase.IDLE, 0, "", 0.1, False)
    run = a_run().pod(0).pod(1).epoch(1, slots=(0,))
    run.seen_by_membership(replace(view, members=(paused, newcomer), proposing=True))
    assert condition(written(decide(run.observed(), NOW)), "Ready")["reason"] == "Growing"


def test_a_run_whose_member_is_gone_is_recovering():
    view = training_view(slots=(0,))
    run = a_run().pod(0).pod(1).epoch(1).seen_by_membership(view)
    assert condition(written(decide(run.observed(), NOW)), "Ready")["reason"] == "Recovering"


def test_fewer_nodes_than_a_plan_needs_are_waited_for():
    run = a_run().pod(0).pod(1).epoch(1).seen_by_membership(training_view(slots=()))
    status = written(decide(run.observed(), NOW))
    assert condition(status, "Ready")["reason"] == "WaitingForNodes"


def test_without_membership_nothing_new_is_claimed():
    run = a_run().pod(0).pod(1).epoch(1).seen_by_membership(training_view())
    run = with_status(run, decide(run.observed(), NOW))
    run.view = None
    assert kinds(decide(run.observed(), NOW + 30)) == []


def test_a_pod_of_another_slot_is_no_member_of_a_seat():
    run = a_run()
    run.pods += [a_pod(0), a_pod(1, 3)]
    assert created(decide(run.observed(), NOW)) == []
