"""What keeps a seat without a worker, in words for people: refused pods, images, mounts, crashes, missing nodes.

| obstacle | reason of Ready | Stalled (kstatus: needs a person) |
|---|---|---|
| quota used up | QuotaExceeded | no: other pods may end, and then the run goes on |
| any other refusal | PodRefused | after `patience_seconds`: policies, limits and accounts do not change by themselves |
| image cannot be pulled | ImageError | after `patience_seconds`; the kubelet goes on trying |
| container cannot be made | PodCannotStart | after `patience_seconds`; the kubelet goes on trying |
| pods end before they can work | PodCannotStart | from the third in a row; made ever more slowly |
| a claim has no volume | ClaimPending | after `provision_seconds`: a volume that is being made takes its time |
| no node is free | WaitingForNodes | no |
| no container for long | WaitingForNodes | no: a large image takes its time; a volume that is missing looks the same |

They decide the state of a run only while too few seats are left for its smallest size; otherwise they are part
of the message. Pods that cannot start are not replaced: another one could not either. Pure; used by `state`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainingrun.api.constants import Reason
from trainingrun.control.claims import claim_names
from trainingrun.control.lost_nodes import NODE_LOST, is_heard
from trainingrun.control.observed import Observed, Seat
from trainingrun.control.policy import Policy
from trainingrun.control.refusals import needs_person, reason_of
from trainingrun.control.remembered import last_end
from trainingrun.ports import Pod, PodPhase
from trainingrun.protocol.names import pod_name

_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_CONTAINER = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "FailedMount",
        "FailedAttachVolume",
        "FailedCreatePodSandBox",
    }
)
_BEING_MADE = frozenset({"", "ContainerCreating", "PodInitializing"})
_NOT_SCHEDULED = frozenset({"Unschedulable", "SchedulingGated", "SchedulerError"})
# Of the scheduler: for a claim that is to be bound at once, and for one that waits for its first pod.
_UNBOUND = re.compile(r"unbound immediate PersistentVolumeClaims|available persistent volumes to bind")
_LAST_WORDS = 600  # characters; an exception is at the end of an output


@dataclass(frozen=True)
class Obstacle:
    slot: int
    reason: Reason
    text: str
    needs_person: bool = False


@dataclass(frozen=True)
class Scene:
    """What a rule looks at: one seat that membership does not hear."""

    observed: Observed
    seat: Seat
    now: float
    policy: Policy


def obstacles(observed: Observed, size: int, now: float, policy: Policy) -> tuple[Obstacle, ...]:
    """At most one for each of the seats 0 to `size` - 1."""
    found = []
    for slot in range(size):
        seat = observed.seats.get(slot, Seat(slot))
        if seat.live is not None and is_heard(seat.live, observed, policy):
            continue
        scene = Scene(observed, seat, now, policy)
        found.append(next((answer for rule in RULES if (answer := rule(scene)) is not None), None))
    return tuple(one for one in found if one is not None)


def gravest(found: Sequence[Obstacle]) -> Obstacle:
    """The one that a person must remove, if there is one; else that of the lowest slot. Not for an empty list."""
    return next((one for one in found if one.needs_person), found[0])


def in_words(found: Sequence[Obstacle]) -> str:
    """The gravest, and how many seats it or others keep empty; "" for none."""
    if not found:
        return ""
    more = len(found) - 1
    others = "" if not more else f" ({more} more {'seat waits' if more == 1 else 'seats wait'})"
    return gravest(found).text + others


# ---- the rules, in order


def _refused(scene: Scene) -> Obstacle | None:
    """The API server would not have the seat's next pod."""
    refusal = scene.observed.refused.get(scene.seat.slot)
    if refusal is None or scene.seat.live is not None:
        return None
    reason = reason_of(refusal, Reason.POD_REFUSED)
    text = f"the API server refuses a pod for seat {scene.seat.slot}: {refusal.message}"
    return Obstacle(scene.seat.slot, reason, text, needs_person(refusal, scene.now, scene.policy))


def _cannot_start(scene: Scene) -> Obstacle | None:
    """The kubelet cannot get the image, or cannot make the container."""
    pod = scene.seat.live
    if pod is None or pod.reason not in _IMAGE | _CONTAINER:
        return None
    reason = Reason.IMAGE_ERROR if pod.reason in _IMAGE else Reason.POD_CANNOT_START
    text = f"{pod.name}: {_with_message(pod)}"
    return Obstacle(pod.slot, reason, text, scene.now - pod.created_at >= scene.policy.patience_seconds)


def _ends_early(scene: Scene) -> Obstacle | None:
    """The seat's pods end before they become members. The newest one may not have had the time yet."""
    seat = scene.seat
    end = last_end(scene.observed, seat)
    if end is None or end.reason == NODE_LOST:
        return None
    what, words = end.reason or "it failed", end.message
    if end.termination is not None:
        what = f"exit code {end.termination.exit_code} ({end.termination.reason})"
        words = end.termination.message
    words = f"{what}: {words[-_LAST_WORDS:]}" if words else what
    name = pod_name(scene.observed.run.name, end.slot, end.incarnation)
    text = f"{name} ended before it could train: {words}"
    if seat.misses > 1:
        text += f"; pod {seat.misses} in a row of seat {seat.slot}"
    return Obstacle(seat.slot, Reason.POD_CANNOT_START, text, seat.misses >= scene.policy.hopeless_pods)


def _no_volume(scene: Scene) -> Obstacle | None:
    """The scheduler waits for a volume, which nothing gives to a claim of the run. It does not say which claim."""
    pod, revision = scene.seat.live, scene.observed.revision
    if pod is None or pod.phase is not PodPhase.PENDING or pod.reason not in _NOT_SCHEDULED:
        return None
    if revision is None or not _UNBOUND.search(pod.message):
        return None
    names = claim_names(revision.spec)
    which = f"PersistentVolumeClaim {names[0]}" if len(names) == 1 else f"one of {', '.join(names)}"
    text = (
        f"{pod.name} waits for a volume: {which} is Pending, because no volume or storage class gives it one"
    )
    waited = scene.now - pod.created_at
    return Obstacle(pod.slot, Reason.CLAIM_PENDING, text, waited >= scene.policy.provision_seconds)


def _no_node(scene: Scene) -> Obstacle | None:
    """The scheduler finds no node; its message may also name a claim that is missing."""
    pod = scene.seat.live
    if pod is None or pod.phase is not PodPhase.PENDING or pod.reason not in _NOT_SCHEDULED:
        return None
    return Obstacle(
        pod.slot, Reason.WAITING_FOR_NODES, f"no node is free for {pod.name}: {_with_message(pod)}"
    )


def _no_container(scene: Scene) -> Obstacle | None:
    """It has a node, and no container for a long time. Only its events would say why; nothing is read from events."""
    pod, limit = scene.seat.live, scene.policy.slow_start_seconds
    if pod is None or pod.phase is not PodPhase.PENDING or not pod.node or pod.reason not in _BEING_MADE:
        return None
    if scene.now - pod.created_at < limit:
        return None
    text = f"{pod.name} has no container on {pod.node} after {limit:.0f} s"
    text += f": {pod.message}" if pod.message else ""
    text += "; its image is being pulled, or a volume cannot be mounted: the pod's events say which"
    return Obstacle(pod.slot, Reason.WAITING_FOR_NODES, text)


RULES: tuple[Callable[[Scene], Obstacle | None], ...] = (
    _refused,
    _cannot_start,
    _no_volume,
    _no_node,
    _ends_early,
    _no_container,
)


def _with_message(pod: Pod) -> str:
    return f"{pod.reason}: {pod.message}" if pod.message else pod.reason
