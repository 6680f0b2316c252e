"""The state of a run in a word and a sentence: what the conditions Ready, Reconciling and Stalled say.

Computed from what is observed, never stepped from one phrase to the next. It looks back for two things only: a
membership service that cannot be asked at the moment, because training goes on without it; and an obstacle that a
person was called for already, who is not sent away because a controller was restarted. Pure; called by `decide`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainingrun.api.constants import ConditionType, Reason
from trainingrun.control.claims import claim_problem
from trainingrun.control.failures import is_disruption
from trainingrun.control.folding import Failure
from trainingrun.control.ledger import summary_of
from trainingrun.control.lost_nodes import nodes_that_train_on
from trainingrun.control.observed import Observed, PlanFailure
from trainingrun.control.obstacles import Obstacle, gravest, in_words, obstacles
from trainingrun.control.policy import Policy
from trainingrun.control.refusals import needs_person, reason_of
from trainingrun.control.resizing import resizes
from trainingrun.control.seats import wanted_size
from trainingrun.protocol.messages import AgentPhase, RunView
from trainingrun.protocol.records import NATIVE, Epoch, Revision, Trigger

_FIXED = "to change the manifest, delete the run and apply it again"
_AT_WORK = (AgentPhase.RUNNING, AgentPhase.DONE)


@dataclass(frozen=True)
class State:
    reason: Reason  # of Ready: the state that people see
    message: str = ""
    ready: bool = False
    busy: Reason | None = None  # reason of Reconciling=True
    stuck: Reason | None = None  # reason of Stalled=True: needs a person


def assess(observed: Observed, failure: Failure | None, completed: bool, now: float, policy: Policy) -> State:
    if completed:
        return State(Reason.COMPLETED, "the last step is done and the model is exported", ready=True)
    if failure is not None:
        return State(failure.reason, failure.message, stuck=failure.reason)
    if observed.revision is None:
        return _before_the_start(observed, now, policy)
    if observed.spec is None:
        text = f"{observed.spec_error}; the run goes on with {observed.revision.name}"
        return State(Reason.INVALID_SPEC, text, stuck=Reason.INVALID_SPEC)
    if observed.view is None or observed.view.suspicious_of_self:
        return _without_membership(observed, observed.revision, now, policy)
    return _with_membership(observed, observed.revision, observed.view, now, policy)


def training_nodes(observed: Observed) -> int:
    """Nodes that train now, as far as known: 0 while an epoch has not made its first step."""
    epoch, view = observed.epoch, observed.view
    if epoch is None:
        return 0
    if view is None or view.suspicious_of_self:
        return len(epoch.members)
    return len(epoch.members) if _stepping(observed, epoch, view) else 0


def joining_nodes(observed: Observed) -> int:
    return 0 if observed.view is None else sum(not member.in_epoch for member in observed.view.members)


def _before_the_start(observed: Observed, now: float, policy: Policy) -> State:
    if observed.lost_revision:
        text = (
            f"the record {observed.lost_revision}, with which this run began, was deleted: what trains goes on, and "
            "nothing that fails is repaired; put the ControllerRevision back, or delete the run and apply it again"
        )
        return State(Reason.REVISION_MISSING, text, stuck=Reason.REVISION_MISSING)
    if observed.taken_revision:
        text = (
            f"the record {observed.taken_revision} belongs to another run; "
            "delete it, or give this run another name"
        )
        return State(Reason.REVISION_CONFLICT, text, stuck=Reason.REVISION_CONFLICT)
    if observed.spec is None:
        return State(Reason.INVALID_SPEC, observed.spec_error, stuck=Reason.INVALID_SPEC)
    problem = claim_problem(observed)
    if problem is not None:
        return State(problem.reason, problem.message, stuck=problem.reason)
    if observed.refused_record is not None:
        refusal = observed.refused_record
        reason = reason_of(refusal, Reason.RECORD_REFUSED)
        text = f"the API server refuses the run's record: {refusal.message}"
        return _hindered(observed, reason, text, needs_person(refusal, now, policy))
    if isinstance(observed.plan, PlanFailure):
        text = f"{observed.plan.message}; {_FIXED}"
        return State(Reason.PLAN_INFEASIBLE, text, stuck=Reason.PLAN_INFEASIBLE)
    return State(Reason.PLANNING, "the planner is at work", busy=Reason.PLANNING)


def _without_membership(observed: Observed, revision: Revision, now: float, policy: Policy) -> State:
    """Nothing is known, so nothing is claimed: what was said before stays."""
    if observed.epoch is None:
        return _starting(observed, revision, 0, now, policy)
    before = _condition(observed.run.status, ConditionType.READY)
    if before.get("status") == "True":
        busy = _condition(observed.run.status, ConditionType.RECONCILING)
        growing = Reason.GROWING if busy.get("status") == "True" else None
        return State(Reason(before["reason"]), before.get("message", ""), ready=True, busy=growing)
    text = "the membership service cannot be asked; a change of members waits for it"
    return State(Reason.MEMBERSHIP_UNREACHABLE, text, busy=Reason.MEMBERSHIP_UNREACHABLE)


def _with_membership(
    observed: Observed, revision: Revision, view: RunView, now: float, policy: Policy
) -> State:
    epoch, wanted = observed.epoch, wanted_size(observed, revision)
    if view.blocked:
        return _blocked(view.blocked)
    if epoch is None:
        return _starting(observed, revision, len(view.members), now, policy)
    found = obstacles(observed, wanted, now, policy)
    smallest = min(rung.nodes for rung in revision.rungs)
    if _stepping(observed, epoch, view):
        count = len(epoch.members)
        useful = [rung.nodes for rung in revision.rungs if rung.useful and rung.nodes <= wanted]
        busy = Reason.GROWING if count < max(useful, default=count) else None
        text = _size(observed, revision, count, wanted)
        if busy is not None and found:
            text += f"; {in_words(found)}"
        silent = nodes_that_train_on(observed, policy)
        if silent:
            text += f"; not answering Kubernetes, but training on: {', '.join(silent)}"
        return State(Reason.TRAINING, text, ready=True, busy=busy)
    if len(view.members) < smallest:
        text = f"{len(view.members)} of at least {smallest} nodes are there"
        if any(rung.engine != NATIVE for rung in revision.rungs):
            text += ", and a run of this engine does not go on with fewer"
        return _short_of_nodes(observed, text, found, wanted - len(found) < smallest)
    why = view.waiting_for or f"epoch {epoch.epoch}, nodes: {len(epoch.members)}"
    begun = view.progress is not None and view.progress.step > 0
    if not begun and not is_disruption(epoch) and epoch.restore.step == 0:
        reason = Reason.STARTING
    elif _shrinks(observed, epoch, view, wanted):
        reason = Reason.SHRINKING
    elif _changes_size(epoch, view):
        reason = Reason.GROWING
    else:
        reason = Reason.RECOVERING
    return State(reason, why, busy=reason)


def _blocked(why: str) -> State:
    """Not a failure: the run goes on by itself once a person has mended it, and nothing is lost until then."""
    word, _, text = why.partition(":")
    known = text and word in {item.value for item in Reason}
    reason = Reason(word) if known else Reason.NO_USABLE_CHECKPOINT
    return State(reason, (text if known else why).strip(), stuck=reason)


def _size(observed: Observed, revision: Revision, count: int, wanted: int) -> str:
    text = f"{count} of {wanted} nodes"
    asked = int(observed.spec["scale"]["maxNodes"]) if observed.spec is not None else wanted
    if asked > wanted:
        text += f"; the plan of {revision.name} ends there, spec.scale.maxNodes is {asked}"
    return text


def _changes_size(epoch: Epoch, view: RunView) -> bool:
    """Does training stand still because the size is changed, and not because something broke?"""
    phases = {(member.slot, member.incarnation): member.phase for member in view.members if member.in_epoch}
    whole = all((member.slot, member.incarnation) in phases for member in epoch.members)
    if not whole or AgentPhase.FAILED in phases.values():
        return False
    joined = epoch.trigger is Trigger.JOINED and not is_disruption(epoch)
    return joined or AgentPhase.PAUSED in phases.values()


def _shrinks(observed: Observed, epoch: Epoch, view: RunView, wanted: int) -> bool:
    """Does training stand still only because members leave, or have left, that are not wanted any more?"""
    phases = {(member.slot, member.incarnation): member.phase for member in view.members}
    gone = [member for member in epoch.members if (member.slot, member.incarnation) not in phases]
    if gone:
        return all(member.slot >= wanted for member in gone)
    return epoch.epoch in resizes(observed) and AgentPhase.FAILED not in phases.values()


def _starting(observed: Observed, revision: Revision, joined: int, now: float, policy: Policy) -> State:
    wanted, smallest = wanted_size(observed, revision), min(rung.nodes for rung in revision.rungs)
    text = f"{joined} of {wanted} nodes have joined"
    found = obstacles(observed, wanted, now, policy)
    if joined < smallest and wanted - len(found) < smallest:
        return _short_of_nodes(observed, text, found, decisive=True)
    if found:
        text += f"; {in_words(found)}"
    if observed.view is not None and observed.view.waiting_for:
        text += f"; {observed.view.waiting_for}"
    return State(Reason.STARTING, text, busy=Reason.STARTING)


def _short_of_nodes(observed: Observed, text: str, found: Sequence[Obstacle], decisive: bool) -> State:
    """`decisive`: too few seats are left for the smallest size, so the obstacles are what the run waits for."""
    if found:
        text += f"; {in_words(found)}"
    if not found or not decisive:
        return State(Reason.WAITING_FOR_NODES, text, busy=Reason.WAITING_FOR_NODES)
    worst = gravest(found)
    return _hindered(observed, worst.reason, text, worst.needs_person)


def _hindered(observed: Observed, reason: Reason, text: str, for_a_person: bool) -> State:
    stalled = _condition(observed.run.status, ConditionType.STALLED)
    called = stalled.get("status") == "True" and stalled.get("reason") == reason
    return State(reason, text, stuck=reason) if for_a_person or called else State(reason, text, busy=reason)


def _stepping(observed: Observed, epoch: Epoch, view: RunView) -> bool:
    """Has the newest epoch made its first step, and does every member work or has it finished its part?"""
    if view.progress is None or summary_of(epoch, view.progress.summary).first_step_at <= 0:
        return False
    good = {(one.slot, one.incarnation) for one in view.members if one.in_epoch and one.phase in _AT_WORK}
    good |= {(pod.slot, pod.incarnation) for pod, end in observed.terminations if end.reason == "Done"}
    return all((member.slot, member.incarnation) in good for member in epoch.members)


def _condition(status: Mapping[str, Any], kind: ConditionType) -> Mapping[str, Any]:
    found = [item for item in status.get("conditions") or [] if item["type"] == kind]
    return found[0] if found else {}
