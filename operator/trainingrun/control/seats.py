"""Which pods to create and delete so that every seat has one pod that can work.

A seat is never given two live pods: the old one is deleted before the next incarnation is created, and the
number of the next incarnation is one above the highest that was ever seen. What is being deleted is not
waited for: a pod on a dead node stays Terminating for as long as the node is away. A pod that cannot start (no
image, no node) is left alone, because the next one could not either. Pure; called by
`decide` for runs that are not over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainingrun.api.constants import EventReason
from trainingrun.control.effects import CreatePod, DeletePod
from trainingrun.control.lost_nodes import why_lost
from trainingrun.control.observed import Observed, Seat
from trainingrun.control.policy import Policy
from trainingrun.control.refusals import not_before
from trainingrun.ports import EventRecord, Pod, PodPhase, PodTemplate
from trainingrun.protocol.names import pod_name
from trainingrun.protocol.records import Revision


@dataclass(frozen=True)
class SeatChanges:
    effects: tuple[DeletePod | CreatePod, ...] = ()
    events: tuple[EventRecord, ...] = ()
    revisit_at: float | None = None  # when the first back-off is over


def wanted_size(observed: Observed, revision: Revision) -> int:
    """How many seats: what the user wants now, but no more than the frozen plan has a rung for."""
    largest = max(rung.nodes for rung in revision.rungs)
    spec = revision.spec if observed.spec is None else observed.spec
    return min(int(spec["scale"]["maxNodes"]), largest)


def fill_seats(observed: Observed, revision: Revision, now: float, policy: Policy) -> SeatChanges:
    effects: list[DeletePod | CreatePod] = []
    events: list[EventRecord] = []
    due: list[float] = []
    size = wanted_size(observed, revision)
    for slot in range(size):
        seat = observed.seats.get(slot, Seat(slot))
        effects += [_delete(pod, f"incarnation {_number(seat)} has its seat") for pod in seat.earlier]
        why = _why_replace(seat, observed, policy)
        if seat.current is not None and not why:
            continue
        at = max(_not_before(seat, policy), not_before(observed.refused.get(slot), observed, policy))
        if at > now:
            due.append(at)
            continue
        if seat.current is not None:
            effects.append(_delete(seat.current, why))
        template = _template(observed, revision, slot, seat.highest + 1)
        effects.append(CreatePod(template))
        events += _tell(seat, template, why, now)
    for slot in sorted(observed.seats, reverse=True):
        live = observed.seats[slot].live
        if slot >= size and live is not None:
            effects.append(_delete(live, f"surplus: the run wants {size} nodes"))
    return SeatChanges(tuple(effects), tuple(events), min(due, default=None))


def remove_live(observed: Observed, why: str) -> tuple[DeletePod, ...]:
    """Deletion of everything that still runs; pods that ended are kept for their logs."""
    return tuple(
        _delete(pod, why)
        for pod in observed.pods
        if not pod.terminating and pod.phase in (PodPhase.PENDING, PodPhase.RUNNING)
    )


def _why_replace(seat: Seat, observed: Observed, policy: Policy) -> str:
    """Why the current pod cannot do its work any more, or "" while it can."""
    pod = seat.current
    if pod is None:
        return "its pod was deleted" if seat.terminating else ""
    lost = why_lost(pod, seat, observed, policy)
    if lost:
        return lost
    if pod.phase is PodPhase.FAILED:
        return _how_it_ended(pod)
    if pod.reason == "CrashLoopBackOff" and pod.crash_looping_seconds > policy.crash_loop_seconds:
        return f"crash looping for {pod.crash_looping_seconds:.0f} s"
    if pod.phase is PodPhase.SUCCEEDED and not _others_may_finish(pod, observed, policy):
        return _how_it_ended(pod)
    return ""


def _others_may_finish(pod: Pod, observed: Observed, policy: Policy) -> bool:
    """Did this pod finish its part while another member of its epoch still saves and exports?

    When none of them is left and the run is not complete, the finished ones are needed again.
    """
    end, epoch = pod.termination, observed.epoch
    if end is None or end.reason != "Done" or epoch is None or end.epoch != epoch.epoch:
        return False
    members = {(member.slot, member.incarnation) for member in epoch.members}
    return any(
        (seat.slot, seat.live.incarnation) in members and not why_lost(seat.live, seat, observed, policy)
        for seat in observed.seats.values()
        if seat.live is not None
    )


def _how_it_ended(pod: Pod) -> str:
    end = pod.termination
    if end is None:
        return f"its pod ended: {pod.reason or pod.phase.value}"
    return f"its pod ended with exit code {end.exit_code} ({end.reason})"


def _not_before(seat: Seat, policy: Policy) -> float:
    """When the next pod of this seat may be created: at once, unless its last ones never joined an epoch.

    Computed from what is observed only, so that a restarted controller waits as long as the one before.
    """
    if seat.misses <= 0 or not seat.own:
        return 0.0
    exponent = min(seat.misses - 1, 30)
    delay = min(policy.first_backoff_seconds * 2.0**exponent, policy.longest_backoff_seconds)
    return max(pod.created_at for pod in seat.own) + delay


def _template(observed: Observed, revision: Revision, slot: int, incarnation: int) -> PodTemplate:
    return PodTemplate(
        run=observed.run.name,
        run_uid=observed.run.uid,
        slot=slot,
        incarnation=incarnation,
        revision=revision.name,
        resources=dict(revision.spec["resources"]["perNode"]),
        processes=revision.rungs[-1].processes_per_node,
        namespace=observed.run.namespace,
        template=revision.pod_template,
    )


def _tell(seat: Seat, template: PodTemplate, why: str, now: float) -> Sequence[EventRecord]:
    name = pod_name(template.run, template.slot, template.incarnation)
    events = []
    squatters = [pod.name for pod in seat.foreign if pod.incarnation == template.incarnation - 1]
    if squatters:
        text = f"the name {squatters[0]} belongs to a pod of another owner; created {name} instead"
        events.append(EventRecord(now, "Warning", EventReason.POD_CREATED, text))
    if why:
        text = f"slot {template.slot} gets {name}: {why}"
        events.append(EventRecord(now, "Normal", EventReason.POD_REPLACED, text))
    return events


def _number(seat: Seat) -> int:
    return -1 if seat.current is None else seat.current.incarnation


def _delete(pod: Pod, why: str) -> DeletePod:
    return DeletePod(pod.name, pod.uid, why)
