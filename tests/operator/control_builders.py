"""Builders for tests of the controller: `a_run().with_nodes(2).epoch(...).pod(0, failed())` -> Observed."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.operator.fake_port import RUN, UID, FakeWorld, a_rung

from trainingrun.api.errors import FieldError, InvalidManifest
from trainingrun.control.effects import CreatePod, Decision, DeletePod, EmitEvent, WriteStatus
from trainingrun.control.observed import (
    Observed,
    PlanFailure,
    PlanOutcome,
    PlanResult,
    Refusal,
    classify,
)
from trainingrun.control.policy import Policy
from trainingrun.control.reconcile import Outcome, reconcile
from trainingrun.control.refusal_book import RefusalBook
from trainingrun.ports import Claim, Node, Pod, PodPhase, RunObject
from trainingrun.protocol.messages import AgentPhase, MemberView, Progress, RunView, Termination
from trainingrun.protocol.names import epoch_name, pod_name
from trainingrun.protocol.records import (
    Epoch,
    EpochSummary,
    Lost,
    Member,
    RankExit,
    Restore,
    RestoreSource,
    Revision,
    Store,
    Trigger,
)

START = 1_000_000.0
NOW = START + 5.0
POLICY = Policy()
SPEC: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "resolved-spec.json").read_text())


def a_spec(**scale: Any) -> dict[str, Any]:
    spec = copy.deepcopy(SPEC)
    spec["scale"].update(scale)
    return spec


def failed(code: int = 1, end: str = "Application", message: str = "boom", **fields: Any) -> dict[str, Any]:
    return {
        "phase": PodPhase.FAILED,
        "ready": False,
        "termination": Termination(code, end, message),
        **fields,
    }


def done(step: int = 300, export: str = "", **fields: Any) -> dict[str, Any]:
    manifest = f"step-{step:08d}.e0001" if export else ""
    end = Termination(
        0, "Done", epoch=1, step=step, tokens=step * 4096, loss=2.0, manifest=manifest, export=export
    )
    return {"phase": PodPhase.SUCCEEDED, "ready": False, "termination": end, **fields}


def a_pod(slot: int, incarnation: int = 0, **fields: Any) -> Pod:
    name = pod_name(RUN, slot, incarnation)
    defaults: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "run_uid": UID,
        "slot": slot,
        "incarnation": incarnation,
        "revision": f"{RUN}-r1",
        "phase": PodPhase.RUNNING,
        "node": f"node-{slot}",
        "ready": True,
        "terminating": False,
        "restarts": 0,
        "created_at": START,
    }
    return Pod(**{**defaults, **fields})


def an_epoch(
    number: int,
    *,
    slots: tuple[int, ...] = (0, 1),
    incarnations: Mapping[int, int] | None = None,
    at: float | None = None,
    trigger: Trigger | None = None,
    restore_step: int = 0,
    source: RestoreSource | None = None,
    last_step: int = 0,
    first_step_at: float = 0.0,
    last_step_at: float = 0.0,
    step_seconds: float = 0.1,
    stall: int = 0,
    lost: tuple[Lost, ...] = (),
    exits: tuple[RankExit, ...] = (),
    detected_at: float | None = None,
    damaged: tuple[str, ...] = (),
) -> Epoch:
    """Record `number`. `last_step` and the times of steps are of the epoch before, which ended with it."""
    created = START + 100.0 * number if at is None else at
    if trigger is None:
        trigger = Trigger.MEMBER_LOST if lost else Trigger.PROCESS_DIED if exits else Trigger.STARTED
    if source is None:
        source = RestoreSource.MEMORY if restore_step else RestoreSource.INITIAL
    previous = EpochSummary(
        epoch=number - 1,
        first_step_at=first_step_at or (created - 50 if last_step else 0.0),
        last_step=last_step,
        last_step_at=last_step_at or (created - 2 if last_step else 0.0),
        step_seconds=step_seconds,
        snapshot_stall_permille=stall,
    )
    return Epoch(
        name=epoch_name(RUN, number),
        run=RUN,
        run_uid=UID,
        epoch=number,
        revision=f"{RUN}-r1",
        nonce=f"n{number}",
        created_at=created,
        members=tuple(
            Member(slot, (incarnations or {}).get(slot, 0), f"s{slot}", f"node-{slot}", "::1", 1)
            for slot in slots
        ),
        rung=a_rung(len(slots)),
        store=Store("::1", 1, f"e{number}"),
        restore=Restore(source, restore_step),
        trigger=trigger,
        detected_at=created - 1 if detected_at is None else detected_at,
        lost=lost,
        exits=exits,
        damaged=damaged,
        previous=previous,
    )


def a_revision(spec: Mapping[str, Any], largest: int = 2) -> Revision:
    rungs = tuple(a_rung(nodes) for nodes in range(1, largest + 1))
    return Revision(f"{RUN}-r1", RUN, UID, 1, dict(spec), rungs, {"reason": "fits"}, "0.1.0", "nonce")


class a_run:
    """What a controller observes of one run. `observed()` gives the value; everything else returns self."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.spec: dict[str, Any] | None = a_spec() if spec is None else spec
        self.spec_error = ""
        self.status: dict[str, Any] = {}
        self.deleting = False
        self.revision: Revision | None = a_revision(self.spec or SPEC)
        self.records: list[Epoch] = []
        self.pods: list[Pod] = []
        self.nodes: dict[str, Node] = {}
        self.view: RunView | None = None
        self.plan: PlanOutcome = None
        self.claims: dict[str, Claim | None] = {}
        self.refused: dict[int, Refusal] = {}
        self.with_nodes(2)

    def with_nodes(self, count: int, *, dead: tuple[int, ...] = ()) -> a_run:
        self.nodes = {f"node-{i}": Node(f"node-{i}", i not in dead) for i in range(count)}
        return self

    def largest(self, nodes: int) -> a_run:
        self.revision = a_revision(self.spec or SPEC, nodes)
        return self

    def unplanned(self, plan: PlanOutcome = None) -> a_run:
        self.revision, self.plan = None, plan
        return self

    def invalid(self, text: str = "spec.model: missing") -> a_run:
        self.spec, self.spec_error = None, text
        return self

    def pod(self, slot: int, fields: Mapping[str, Any] | None = None, *, incarnation: int = 0) -> a_run:
        self.pods.append(a_pod(slot, incarnation, **(fields or {})))
        return self

    def epoch(self, number: int, **fields: Any) -> a_run:
        self.records.append(an_epoch(number, **fields))
        return self

    def seen_by_membership(self, view: RunView) -> a_run:
        self.view = view
        return self

    def status_is(self, status: Mapping[str, Any]) -> a_run:
        self.status = dict(status)
        return self

    def has_refused(self, slot: int, message: str, *, count: int = 1, at: float = START) -> a_run:
        self.refused[slot] = Refusal("Forbidden", message, count, at, at, 1)
        return self

    def is_deleted(self) -> a_run:
        self.deleting = True
        return self

    def observed(self) -> Observed:
        accounted = (self.status.get("disruptions") or {}).get("accountedEpoch", 0)
        known = {record.epoch: record for record in self.records}
        return Observed(
            run=RunObject(RUN, UID, 1, "1", {}, self.status, self.deleting, START),
            spec=self.spec,
            spec_error=self.spec_error,
            revision=self.revision,
            before=known.get(accounted - 1),
            last=known.get(accounted),
            fresh=tuple(record for record in self.records if record.epoch > accounted),
            seats=classify(UID, self.pods, self.records, self.view),
            nodes=self.nodes,
            view=self.view,
            plan=self.plan,
            claims=self.claims,
            refused=self.refused,
        )


def kinds(decision: Decision) -> list[str]:
    return [type(effect).__name__ for effect in decision.effects]


def written(decision: Decision) -> dict[str, Any]:
    [effect] = [effect for effect in decision.effects if isinstance(effect, WriteStatus)]
    return dict(effect.status)


def told(decision: Decision) -> list[str]:
    return [effect.event.message for effect in decision.effects if isinstance(effect, EmitEvent)]


def condition(status: Mapping[str, Any], kind: str) -> dict[str, Any]:
    [found] = [item for item in status["conditions"] if item["type"] == kind]
    return dict(found)


class InstantPlans:
    """`reconcile.Planning` that answers at once."""

    def __init__(self, largest: int = 2, failure: str = "") -> None:
        rungs = tuple(a_rung(nodes) for nodes in range(1, largest + 1))
        self.answer: PlanResult | PlanFailure = PlanResult(rungs, {"reason": "fits"}, "0.1.0", "fits")
        if failure:
            self.answer = PlanFailure(failure)
        self.asked: list[Mapping[str, Any]] = []
        self.refusals = RefusalBook()  # goes with the controller's process, as plans do

    def outcome(self, spec: Mapping[str, Any]) -> PlanOutcome:
        return self.answer if spec in self.asked else None

    def request(self, spec: Mapping[str, Any]) -> None:
        self.asked.append(spec)


def resolve_plainly(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The manifests of these tests hold the resolved spec; a missing one is invalid."""
    if "spec" not in manifest:
        raise InvalidManifest((FieldError("spec", None, "required, but not there", "add spec"),))
    spec: Mapping[str, Any] = manifest["spec"]
    return spec


def step(world: FakeWorld, plans: InstantPlans, policy: Policy = POLICY) -> Outcome:
    return reconcile(world, RUN, world.at, plans, resolve_plainly, policy, plans.refusals)


def settle(world: FakeWorld, plans: InstantPlans, policy: Policy = POLICY, most: int = 12) -> None:
    """Reconcile until nothing is left to do at this time."""
    for _ in range(most):
        before = world.effects
        outcome = step(world, plans, policy)
        due = outcome.retry or (outcome.revisit_at is not None and outcome.revisit_at <= world.at)
        if world.effects == before and not due:
            return
    raise AssertionError("the controller does not come to rest")


def with_status(run: a_run, decision: Decision) -> a_run:
    """The run as it is after the decision's status was written."""
    return run.status_is(written(decision))


def changed(observed: Observed, **fields: Any) -> Observed:
    return replace(observed, **fields)


def created(decision: Decision) -> list[tuple[int, int]]:
    """(slot, incarnation) of the pods to create."""
    return [
        (effect.template.slot, effect.template.incarnation)
        for effect in decision.effects
        if isinstance(effect, CreatePod)
    ]


def deleted(decision: Decision) -> list[str]:
    return [effect.name for effect in decision.effects if isinstance(effect, DeletePod)]


def training_view(
    epoch: int = 1,
    *,
    slots: tuple[int, ...] = (0, 1),
    step: int = 120,
    first_step_at: float = START + 3.0,
    blocked: str = "",
    **fields: Any,
) -> RunView:
    """What membership says of a run that trains; `fields` replace those of the view."""
    members = tuple(
        MemberView(slot, 0, f"node-{slot}", AgentPhase.RUNNING, epoch, "", 0.1, True) for slot in slots
    )
    summary = EpochSummary(epoch, first_step_at, 1, step, NOW - 0.1, step * 4096, 0.1)
    progress = Progress(step, 3.25, step * 4096, 40960.0, 1e-3, 300, summary)
    defaults: dict[str, Any] = {
        "proposing": False,
        "waiting_for": "",
        "restore": None,
        "memory_step": step - 1,
    }
    values = {**defaults, **fields}
    return RunView("uid-demo", epoch, members, progress, blocked=blocked, suspicious_of_self=False, **values)


def turn(world: FakeWorld, plans: InstantPlans, seconds: float = 1.0) -> None:
    """The controller, the kubelets and membership once each; then time passes."""
    settle(world, plans)
    world.kubelet()
    world.membership_round()
    world.at += seconds
