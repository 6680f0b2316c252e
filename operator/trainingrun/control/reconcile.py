"""observe -> decide -> apply for one run. The only part of the controller that reads and changes the world.

It applies effects in their order and stops at the first conflict; whatever is left follows from the next
observation. A pod or record that is refused stops nothing: it is remembered, the others are made, and what is said
in status is decided again with that knowledge. It decides nothing. Called by `loop`, and by tests with a fake port.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from trainingrun.api.errors import UserError
from trainingrun.control.claims import claim_names
from trainingrun.control.decide import DEFAULT_POLICY, decide
from trainingrun.control.effects import (
    CreatePod,
    CreateRevision,
    Decision,
    DeletePod,
    Effect,
    EmitEvent,
    MakePlan,
    WriteStatus,
)
from trainingrun.control.observed import Observed, PlanOutcome, PlanPending, PlanResult, classify
from trainingrun.control.policy import Policy
from trainingrun.control.refusal_book import RECORD, RefusalBook
from trainingrun.ports import Claim, Conflict, ControlPort, Refused, RunObject, Unavailable

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
    reason: str = ""  # for the log: what went wrong
    planning: bool = False  # its plan is in the making


def observe(
    port: ControlPort,
    run: RunObject,
    planning: Planning,
    resolve: Resolve,
    refusals: RefusalBook | None = None,
) -> Observed:
    """One look at a run. Reads no more than it needs. Raises Unavailable and Refused."""
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
    view = port.membership(run.uid) if revision is not None else None
    if view is not None and view.run_uid != run.uid:
        view = None
    claims: Mapping[str, Claim | None] = {}
    plan: PlanOutcome = None
    if spec is not None and revision is None:
        names = claim_names(spec)
        claims = port.claims(run.key, names) if names else {}
        plan = planning.outcome(spec)
    freezes = spec is not None and isinstance(plan, PlanResult)
    observed = Observed(
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
        plan=plan,
        pod_template=port.pod_template(run, spec) if spec is not None and freezes else {},
        claims=claims,
    )
    return observed if refusals is None else _with_refusals(observed, refusals)


def reconcile(
    port: ControlPort,
    name: str,
    now: float,
    planning: Planning,
    resolve: Resolve,
    policy: Policy = DEFAULT_POLICY,
    refusals: RefusalBook | None = None,
) -> Outcome:
    """Bring the run `name` one step closer to what it should be. Never raises Conflict, Refused or Unavailable.

    `refusals` is what the controller remembers from one call to the next; without it, every call is its first.
    """
    book = RefusalBook() if refusals is None else refusals
    try:
        run = port.get_run(name)
        if run is None:
            return Outcome()
        observed = observe(port, run, planning, resolve, book)
        decision = decide(observed, now, policy)
        try:
            setback = _change(port, observed, planning, book, decision, now)
            if isinstance(setback, Refused):
                decision = decide(replace(_with_refusals(observed, book), just_refused=True), now, policy)
            _tell(port, run, decision)
        except Conflict as conflict:
            return _after_conflict(port, observed, decision, conflict, now, policy)
    except Unavailable as error:
        return Outcome(retry=True, reason=f"unavailable: {error}")
    except Refused as error:
        return Outcome(retry=True, reason=_refusal(error))
    if isinstance(setback, Unavailable):
        return Outcome(retry=True, reason=f"unavailable: {setback}")
    reason = "" if setback is None else _refusal(setback)
    plans = isinstance(observed.plan, PlanPending)
    if any(isinstance(effect, MakePlan | CreateRevision | WriteStatus) for effect in decision.effects):
        return Outcome(revisit_at=now, reason=reason, planning=plans)  # each makes a next step possible
    return Outcome(revisit_at=decision.revisit_at, reason=reason, planning=plans)


def _refusal(error: Refused) -> str:
    return f"refused ({error.reason}): {error.message}"


def _with_refusals(observed: Observed, book: RefusalBook) -> Observed:
    found = book.of(observed.run)
    pods = {slot: refusal for slot, refusal in found.items() if slot != RECORD}
    return replace(observed, refused=pods, refused_record=found.get(RECORD))


def _change(
    port: ControlPort,
    observed: Observed,
    planning: Planning,
    book: RefusalBook,
    decision: Decision,
    now: float,
) -> Refused | Unavailable | None:
    """Create and delete. Returns the newest refusal of a pod or record, if there was one.

    A pod that cannot be made now ends the round, and is returned; the status is of use all the same.
    """
    run = observed.run
    refused: Refused | None = None
    for effect in decision.effects:
        slot = _slot_of(effect)
        if refused is not None and slot is not None and slot in observed.refused:
            # The pods of a run are alike. Where one is refused now, those that were refused before need no try.
            book.note(observed, slot, refused, now)
            continue
        try:
            _apply(port, run, planning, effect)
        except Refused as error:
            if slot is None:
                raise
            book.note(observed, slot, error, now)
            refused = error
        except Conflict:
            if isinstance(effect, CreateRevision) and observed.revision is not None:
                continue  # a further revision: it is there already, or its name is somebody's; the run goes on as it is
            raise
        except Unavailable as error:
            if not isinstance(effect, CreatePod):
                raise
            return error
        else:
            if slot is not None:
                book.accepted(run, slot)
    return refused


def _slot_of(effect: Effect) -> int | None:
    match effect:
        case CreateRevision():
            return RECORD
        case CreatePod(template):
            return template.slot
    return None


def _tell(port: ControlPort, run: RunObject, decision: Decision) -> None:
    for effect in decision.effects:
        match effect:
            case WriteStatus(status):
                port.write_status(run.key, status, run.resource_version)
            case EmitEvent(event):
                try:
                    port.emit(run.key, event)
                except Refused:  # a namespace that is going takes no events, and nothing depends on them
                    return


def _apply(port: ControlPort, run: RunObject, planning: Planning, effect: Effect) -> None:
    """All but what is told: see `_tell`."""
    match effect:
        case MakePlan(spec):
            planning.request(spec)
        case CreateRevision(revision):
            port.create(revision)
        case DeletePod(name, uid):
            port.delete_pod(run.key, name, uid)
        case CreatePod(template):
            port.create_pod(template)


def _after_conflict(
    port: ControlPort,
    observed: Observed,
    decision: Decision,
    conflict: Conflict,
    now: float,
    policy: Policy,
) -> Outcome:
    """A name that is taken is not "already done": read again who has it.

    A record of ours is simply found by the next observation, whoever made it. Another run's is an error that
    only a person can remove, and is said in status.
    """
    run = observed.run
    records = [effect.revision for effect in decision.effects if isinstance(effect, CreateRevision)]
    if records and not port.revisions(run.uid):
        taken = replace(observed, taken_revision=records[0].name)
        try:
            _tell(port, run, decide(taken, now, policy))
        except Conflict as another:
            conflict = another  # somebody changed the run meanwhile; it is read again soon
    return Outcome(retry=True, reason=f"conflict: {conflict}")
