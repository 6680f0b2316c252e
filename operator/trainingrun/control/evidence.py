"""When is enough known to judge why a member was lost?

Membership sees a loss within seconds; pods and nodes show it later: a container that ended within a second or
two, a dead node only when Kubernetes gives it up, 16 to 50 s later. A record that is judged too early keeps the wrong
cause for ever, so judging waits, but never for longer than `deadline`. Pure; called by `folding`.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.control.failures import PREEMPTED, UNEXPLAINED, is_away, without_old_words
from trainingrun.control.lost_nodes import NODE_LOST, is_heard
from trainingrun.control.observed import ENDED, Observed
from trainingrun.control.policy import Policy
from trainingrun.control.remembered import Pods
from trainingrun.ports import Pod
from trainingrun.protocol.records import Epoch, Lost


@dataclass(frozen=True)
class Look:
    """What `record`, which follows `before`, is judged by."""

    record: Epoch
    before: Epoch | None
    pods: Pods
    observed: Observed
    now: float
    policy: Policy


def deadline(record: Epoch, policy: Policy) -> float:
    """When the record is judged by what is known then, in seconds since 1970."""
    unexplained = any(lost.reason in UNEXPLAINED for lost in record.lost)
    return record.created_at + (policy.silent_evidence_seconds if unexplained else policy.evidence_seconds)


def is_complete(look: Look) -> bool:
    """Does something explain every loss?"""
    return all(_is_explained(lost, look) for lost in look.record.lost)


def _is_explained(lost: Lost, look: Look) -> bool:
    pod = look.pods.get((lost.slot, lost.incarnation))
    if pod is None or _has_ended(pod) or is_away(lost.node, look.observed.nodes):
        return True
    end = without_old_words(pod, look.before).termination
    ours = end is not None and look.before is not None and end.epoch == look.before.epoch
    if ours or look.now - look.record.created_at < look.policy.settle_seconds:
        return ours
    if is_heard(pod, look.observed, look.policy):
        return True  # the same pod is there again, or was all the time
    return lost.reason not in UNEXPLAINED and (end is not None or bool(pod.reason))


def _has_ended(pod: Pod) -> bool:
    return pod.terminating or pod.phase in ENDED or pod.reason == NODE_LOST or pod.reason in PREEMPTED
