"""Volume claims are looked at before a run is frozen, and only then."""

from __future__ import annotations

import pytest
from tests.operator.control_builders import InstantPlans, a_run, a_spec, condition, settle, step, written
from tests.operator.fake_port import FakeWorld

from trainingrun.control.decide import decide
from trainingrun.control.observed import PlanFailure
from trainingrun.ports import Claim

NOW = 1_000_005.0


def a_claiming_spec(nodes: int = 2):
    spec = a_spec(maxNodes=nodes)
    spec["checkpoint"]["location"] = {"uri": "pvc://ckpt/demo"}
    spec["data"]["sources"][0]["uri"] = "pvc://lake/text"
    return spec


def problem(nodes: int = 2, lake: Claim | None = None, ckpt: Claim | None = None):
    run = a_run(a_claiming_spec(nodes)).unplanned()
    run.claims = {"lake": lake, "ckpt": ckpt}
    return condition(written(decide(run.observed(), NOW)), "Ready")


def claim(name: str, *modes: str, phase: str = "Bound") -> Claim:
    return Claim(name, modes, phase)


SHARED = claim("ckpt", "ReadWriteMany")


def test_a_missing_claim_is_named_with_its_field():
    run = a_run(a_claiming_spec()).unplanned()
    run.claims = {"lake": None, "ckpt": SHARED}
    decision = decide(run.observed(), NOW)
    status = written(decision)
    text = (
        "spec.data.sources[0].uri: there is no PersistentVolumeClaim lake in the run's namespace: create it, "
        "or, where the name is wrong, delete the run and apply the changed manifest"
    )
    for kind, value in (("Ready", "False"), ("Stalled", "True"), ("Planned", "False")):
        found = condition(status, kind)
        assert (found["status"], found["reason"], found["message"]) == (value, "ClaimMissing", text)
    assert decision.revisit_at == NOW + 5.0


def test_a_claim_for_one_node_is_refused_for_a_run_of_several():
    found = problem(lake=claim("lake", "ReadOnlyMany"), ckpt=claim("ckpt", "ReadWriteOnce"))
    assert found["reason"] == "ClaimNotShared"
    assert found["message"] == (
        "spec.checkpoint.location.uri: PersistentVolumeClaim ckpt is ReadWriteOnce, for one node at a time, "
        "and spec.scale.maxNodes is 2: use a claim that is ReadWriteMany, or set spec.scale.maxNodes to 1"
    )


@pytest.mark.parametrize(
    ("nodes", "lake", "ckpt", "reason"),
    [
        (2, claim("lake", "ReadWriteOncePod"), SHARED, "ClaimNotShared"),
        (2, claim("lake", "ReadOnlyMany"), SHARED, "Planning"),
        (2, claim("lake", "ReadWriteMany", phase="Pending"), SHARED, "Planning"),
        (2, claim("lake", "ReadWriteOnce", "ReadOnlyMany"), SHARED, "Planning"),
        (2, claim("lake", "ReadWriteMany", phase="Lost"), SHARED, "ClaimMissing"),
        (2, claim("lake", "ReadWriteMany"), claim("ckpt", "ReadOnlyMany"), "ClaimReadOnly"),
        (2, claim("lake", "ReadWriteMany"), claim("ckpt", "ReadWriteOnce", "ReadOnlyMany"), "ClaimNotShared"),
        (1, claim("lake", "ReadWriteOnce"), claim("ckpt", "ReadWriteOncePod"), "Planning"),
        (1, claim("lake", "ReadWriteOnce"), claim("ckpt", "ReadOnlyMany"), "ClaimReadOnly"),
    ],
)
def test_what_a_claim_must_allow_follows_from_its_use(nodes, lake, ckpt, reason):
    assert problem(nodes, lake, ckpt)["reason"] == reason


def test_all_claims_that_have_a_problem_are_named_at_once():
    message = problem()["message"]
    assert "PersistentVolumeClaim lake" in message
    assert "PersistentVolumeClaim ckpt" in message


def test_a_plan_that_does_not_fit_is_said_only_when_the_claims_are_right():
    run = a_run(a_claiming_spec()).unplanned(PlanFailure("too small"))
    run.claims = {"lake": None, "ckpt": SHARED}
    status = written(decide(run.observed(), NOW))
    assert {condition(status, kind)["reason"] for kind in ("Ready", "Planned")} == {"ClaimMissing"}


def test_a_run_goes_on_by_itself_once_its_claim_is_there_and_then_asks_no_more():
    world, plans = FakeWorld({"spec": a_claiming_spec()}), InstantPlans()
    world.claim_map["ckpt"] = SHARED
    for _ in range(20):
        settle(world, plans)
        world.at += 5.0
    assert plans.asked == world.revision_list == world.created == []
    assert world.status_writes == 1
    assert len(world.events) == 1
    world.claim_map["lake"] = claim("lake", "ReadWriteMany")
    settle(world, plans)
    assert len(world.created) == 2
    assert condition(world.status, "Stalled")["status"] == "False"
    world.asked.clear()
    for _ in range(5):
        world.at += 2.0
        settle(world, plans)
    assert set(world.asked) == {"membership"}


def test_a_run_without_claims_never_asks_for_them_and_renders_its_template_once():
    world, plans = FakeWorld({"spec": a_spec()}), InstantPlans()
    for _ in range(5):
        step(world, plans)
    assert world.asked.count("claims") == 0
    assert world.asked.count("pod_template") == 1
