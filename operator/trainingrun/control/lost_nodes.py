"""Is a pod lost together with its node, or does only its kubelet not answer?

Kubernetes and membership look from two sides. A kubelet that is down does not stop a healthy worker, so news
from the worker itself weighs more than a node that is not ready; and a worker that is silent on a node that is
ready may only be slow. A pod on a lost node is deleted and stays Terminating for as long as the node is away:
it keeps its name, never its seat. Pure; used by `seats`, `state` and `obstacles`.
"""

from __future__ import annotations

from trainingrun.control.failures import is_away
from trainingrun.control.observed import Observed, Seat
from trainingrun.control.policy import Policy
from trainingrun.ports import Pod, PodPhase

NODE_LOST = "NodeLost"


def is_heard(pod: Pod, observed: Observed, policy: Policy) -> bool:
    """Does membership have fresh news of exactly this pod?"""
    silence = observed.silences.get((pod.slot, pod.incarnation))
    return silence is not None and silence <= policy.news_seconds


def why_lost(pod: Pod, seat: Seat, observed: Observed, policy: Policy) -> str:
    """Why this pod counts as lost with its node, or ""."""
    if pod.phase is PodPhase.SUCCEEDED:
        return ""  # what is done needs no node
    if pod.phase is PodPhase.FAILED:
        return f"node {pod.node} is lost" if pod.reason == NODE_LOST else ""
    if is_heard(pod, observed, policy):
        return ""
    if pod.reason == NODE_LOST:
        return "" if _may_be_heard_soon(pod, observed) else f"node {pod.node} is lost"
    if is_away(pod.node, observed.nodes) and _was_dropped(pod, seat, observed):
        return f"node {pod.node} is not ready, and its worker is silent"
    return ""


def nodes_that_train_on(observed: Observed, policy: Policy) -> list[str]:
    """Nodes that do not answer Kubernetes, but whose workers membership hears."""
    lives = [seat.live for seat in observed.seats.values() if seat.live is not None]
    return sorted({pod.node for pod in lives if pod.reason == NODE_LOST and is_heard(pod, observed, policy)})


def _may_be_heard_soon(pod: Pod, observed: Observed) -> bool:
    """A member, while membership is away or collects its members again: no replacement could join anyway."""
    epoch, view = observed.epoch, observed.view
    if epoch is None or (view is not None and not (view.suspicious_of_self and view.members)):
        return False
    return any((one.slot, one.incarnation) == (pod.slot, pod.incarnation) for one in epoch.members)


def _was_dropped(pod: Pod, seat: Seat, observed: Observed) -> bool:
    """Has membership given up a member that it knew?"""
    view = observed.view
    if view is None or view.suspicious_of_self or seat.joined < pod.incarnation:
        return False
    return (pod.slot, pod.incarnation) not in observed.silences
