"""What was lost, in words for people: a node, a pod or a process.

The cause of a disruption is judged elsewhere (`failures`), and for good; this only says what is seen of the lost
members when the event is told. Pure; called by `telling`.
"""

from __future__ import annotations

from trainingrun.api.constants import Cause, EventReason
from trainingrun.control.failures import (
    NOT_A_FAULT,
    PREEMPTED,
    UNEXPLAINED,
    is_away,
    without_old_words,
)
from trainingrun.control.lost_nodes import NODE_LOST
from trainingrun.control.observed import ENDED, Observed
from trainingrun.control.remembered import member_pods
from trainingrun.ports import Pod
from trainingrun.protocol.names import pod_name
from trainingrun.protocol.records import Epoch, Lost

_GRAVEST_FIRST = (EventReason.NODE_LOST, EventReason.POD_LOST, EventReason.PROCESS_DIED)


def what_was_lost(
    record: Epoch, ended: Epoch | None, observed: Observed, cause: str
) -> tuple[EventReason, str]:
    """The event's reason and words for a record with lost members. `ended` is the epoch that they were members of."""
    pods = member_pods(observed)
    found = []
    for lost in record.lost:
        pod = pods.get((lost.slot, lost.incarnation))
        pod = None if pod is None else without_old_words(pod, ended)
        found.append(_one(lost, pod, observed, cause))
    reasons = {reason for reason, _ in found}
    reason = next(reason for reason in _GRAVEST_FIRST if reason in reasons)
    return reason, ", ".join(dict.fromkeys(text for _, text in found))


def _one(lost: Lost, pod: Pod | None, observed: Observed, cause: str) -> tuple[EventReason, str]:
    where = f"pod {pod_name(observed.run.name, lost.slot, lost.incarnation)} on {lost.node}"
    if is_away(lost.node, observed.nodes) or (pod is not None and pod.reason == NODE_LOST):
        return EventReason.NODE_LOST, f"{lost.node} lost"
    if lost.reason == "Replaced":
        return EventReason.POD_LOST, f"{where} was replaced"
    if lost.reason == "Restarted":
        return EventReason.PROCESS_DIED, f"the agent on {lost.node} died"
    if pod is None or pod.terminating or pod.phase in ENDED:
        return EventReason.POD_LOST, f"{where} {_fate(lost, pod, cause)}"
    if lost.reason in UNEXPLAINED:
        return EventReason.POD_LOST, f"{where} did not answer"
    return EventReason.PROCESS_DIED, f"the agent on {lost.node} died"


def _fate(lost: Lost, pod: Pod | None, cause: str) -> str:
    if pod is not None and pod.reason in PREEMPTED:
        return f"was evicted ({pod.reason})"
    if cause == Cause.PREEMPTION:
        return "was evicted"
    end = None if pod is None else pod.termination
    if lost.reason == "Left":
        return "was deleted"  # told to end, its agent says goodbye, whatever it exits with
    if end is not None and end.exit_code not in NOT_A_FAULT:
        return f"ended with exit code {end.exit_code} ({end.reason})"
    return "is gone" if pod is None else "was deleted" if pod.terminating else "ended"
