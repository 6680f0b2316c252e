"""observe -> decide -> apply for one run. The only part of the controller that reads and changes the world.

It applies effects in their order and stops at the first one that the world refuses; whatever is left
follows from the next observation. It decides nothing. Called by `loop`, and by tests with a fake port.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trainingrun.api.errors import UserError
from trainingrun.control.decide import DEFAULT_POLICY, decide
from trainingrun.control.effects import (
    CreatePod,
    CreateRevision,
    DeletePod,
    Effect,
    EmitEvent,
    MakePlan,
    WriteStatus,
)
from trainingrun.control.observed import Observed, PlanOutcome, classify
from trainingrun.control.policy import Policy
from trainingrun.ports import Conflict, ControlPort, RunObject, Unavailable

Resolve = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From a stored manifest to the resolved spec; raises UserError with a message for people."""


class Planning(Protocol):
    """Plans that are asked for and answered later. See `planning`."""

    def outcome(self, spec: Mapping[str, Any]) -> PlanOutcome:
        """The plan for this resolved spec, if somebody asked for it."""

    def request(self, spec: Mapping[str, Any]) -> None:
        """Begin to plan; asking twice is asking once."""


@dataclass(frozen=True)
class Outcome:
    """When to look at this run again. `retry`: it was not all applied, so soon, with back-off."""

    retry: bool = False
    revisit_at: float | None = None
    reason: str = ""


def observe(port: ControlPort, run: RunObject, planning: Planning, resolve: Resolve) -> Observed:
    """One look at a run. Raises Unavailable."""
    spec: Mapping[str, Any] | None = None
    problem = ""
    try:
        spec = resolve(run.manifest)
    except UserError as error:
        problem = str(error)
    revisions = port.revisions(run.uid)
    revision = revisions[-1] if revisions else None
    accounted = ((run.status.get("disruptions") or {}).get("accountedEpoch")) or 0
    records = port.epochs(run.uid, after=max(0, accounted - 2))
    known = [record for record in records if record.epoch <= accounted]
    view = port.membership(run.uid)
    if view is not None and view.run_uid != run.uid:
        view = None
    return Observed(
        run=run,
        spec=spec,
        spec_error=problem,
        revision=revision,
        before=next((record for record in known if record.epoch == accounted - 1), None),
        last=next((record for record in known if record.epoch == accounted), None),
        fresh=tuple(record for record in records if record.epoch > accounted),
        seats=classify(run.uid, port.pods(run.key), records, view),
        nodes={node.name: node for node in port.nodes()},
        view=view,
        plan=planning.outcome(spec) if spec is not None and revision is None else None,
        pod_template=port.pod_template(run, spec) if spec is not None and revision is None else {},
    )


def reconcile(
    port: ControlPort,
    name: str,
    now: float,
    planning: Planning,
    resolve: Resolve,
    policy: Policy = DEFAULT_POLICY,
) -> Outcome:
    """Bring the run `name` one step closer to what it should be. Never raises Conflict or Unavailable."""
    try:
        run = port.get_run(name)
        if run is None:
            return Outcome()
        observed = observe(port, run, planning, resolve)
        decision = decide(observed, now, policy)
        for effect in decision.effects:
            try:
                _apply(port, run, planning, effect)
            except Conflict as conflict:
                return _after_conflict(port, observed, planning, effect, conflict, now, policy)
    except Unavailable as error:
        return Outcome(retry=True, reason=f"unavailable: {error}")
    if any(isinstance(effect, MakePlan | CreateRevision | WriteStatus) for effect in decision.effects):
        return Outcome(revisit_at=now)  # each of them makes a next step possible
    return Outcome(revisit_at=decision.revisit_at)


def _apply(port: ControlPort, run: RunObject, planning: Planning, effect: Effect) -> None:
    match effect:
        case MakePlan(spec):
            planning.request(spec)
        case CreateRevision(revision):
            port.create(revision)
        case DeletePod(name, uid):
            port.delete_pod(run.key, name, uid)
        case CreatePod(template):
            port.create_pod(template)
        case WriteStatus(status):
            port.write_status(run.key, status, run.resource_version)
        case EmitEvent(event):
            port.emit(run.key, event)


def _after_conflict(
    port: ControlPort,
    observed: Observed,
    planning: Planning,
    effect: Effect,
    conflict: Conflict,
    now: float,
    policy: Policy,
) -> Outcome:
    """A name that is taken is not "already done": read again who has it.

    A record of ours is simply found by the next observation, whoever made it. Another run's is an error that
    only a person can remove, and is said in status.
    """
    run = observed.run
    if isinstance(effect, CreateRevision) and not port.revisions(run.uid):
        taken = replace(observed, taken_revision=effect.revision.name)
        try:
            for consequence in decide(taken, now, policy).effects:
                _apply(port, run, planning, consequence)
        except Conflict as another:
            conflict = another  # somebody changed the run meanwhile; it is read again soon
    return Outcome(retry=True, reason=f"conflict: {conflict}")
