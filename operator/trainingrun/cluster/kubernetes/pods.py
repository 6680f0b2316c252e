"""Pod objects as ports.Pod: what Kubernetes says in a dozen places, as one phase, one reason and one end.

Pure: nodes and time are parameters. It says what is, not what to do about it. `TROUBLES` and `FATES` are the
documentation: the first rule with an answer gives the reason. Called by the adapter for each pod of a LIST.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.api import worker_pod
from trainingrun.api.constants import Label
from trainingrun.cluster.kubernetes.endings import last_words
from trainingrun.cluster.kubernetes.objects import (
    Object,
    RunRef,
    label,
    metadata,
    name_of,
    owner_uid,
    seconds,
    uid_of,
)
from trainingrun.ports import Pod, PodPhase
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import Termination

CONTAINER = worker_pod.CONTAINER
HISTORY_SECONDS = 600.0
"""What happened to a pod that lives on, and longer ago than this, explains nothing that happens to it now."""

_STARTING = frozenset({"ContainerCreating", "PodInitializing"})  # no trouble, unless there is a message
_PHASES = {
    "Pending": PodPhase.PENDING,
    "Succeeded": PodPhase.SUCCEEDED,
    "Failed": PodPhase.FAILED,
}  # Running, and Unknown: its node does not answer

Why = tuple[str, str]
"""(reason, message)."""


@dataclass(frozen=True)
class Look:
    """One pod object and what is around it."""

    pod: Object
    node_ready: Mapping[str, bool]  # of all nodes there are
    now: float

    @property
    def status(self) -> Mapping[str, Any]:
        return self.pod.get("status") or {}

    @property
    def node(self) -> str:
        return str((self.pod.get("spec") or {}).get("nodeName") or "")

    @property
    def terminating(self) -> bool:
        return bool(metadata(self.pod).get("deletionTimestamp"))

    @property
    def over(self) -> bool:
        return self.status.get("phase") in ("Succeeded", "Failed")

    def condition(self, kind: str) -> Mapping[str, Any]:
        conditions = self.status.get("conditions") or []
        return next((one for one in conditions if one.get("type") == kind), {})

    @property
    def trainer(self) -> Mapping[str, Any]:
        """The status of the container; empty before there is one."""
        return next((one for one in self._statuses("containerStatuses") if one.get("name") == CONTAINER), {})

    @property
    def waiting(self) -> Iterator[Mapping[str, Any]]:
        """Containers that do not run yet, or again, in the order in which they must start."""
        for one in [*self._statuses("initContainerStatuses"), *self._statuses("containerStatuses")]:
            waiting = (one.get("state") or {}).get("waiting")
            if waiting:
                yield waiting

    @property
    def ended(self) -> Mapping[str, Any]:
        """How the container ended last: as it is now, or before it was started again. Empty when it never did."""
        for state in ("state", "lastState"):
            found = (self.trainer.get(state) or {}).get("terminated")
            if found:
                return dict(found)
        return {}

    @property
    def termination(self) -> Termination | None:
        """Its last words, unless they are of long ago and a new container works well since."""
        running = "running" in (self.trainer.get("state") or {})
        if not self.ended or (running and self.is_history(self.ended.get("finishedAt"))):
            return None
        return last_words(self.ended)

    def is_history(self, time: object) -> bool:
        return self.now - seconds(time) > HISTORY_SECONDS

    def _statuses(self, kind: str) -> list[Mapping[str, Any]]:
        return self.status.get(kind) or []


def translate(pod: Object, run: RunRef, node_ready: Mapping[str, bool], now: float) -> Pod | None:
    """The port's view of a pod; None for one that only looks related: neither owned by the run nor under its names."""
    seat = _seat(pod, run)
    if seat is None:
        return None
    look = Look(pod, node_ready, now)
    end = look.termination
    reason, message = _why(look)
    return Pod(
        name=name_of(pod),
        uid=uid_of(pod),
        run_uid=owner_uid(pod),
        slot=seat[0],
        incarnation=seat[1],
        revision=label(pod, Label.REVISION),
        phase=_phase(look, end),
        node=look.node,
        ready=look.condition("Ready").get("status") == "True",
        terminating=look.terminating,
        restarts=int(look.trainer.get("restartCount") or 0),
        reason=reason,
        message=message,
        crash_looping_seconds=_crash_looping(look),
        termination=end,
        created_at=seconds(metadata(pod).get("creationTimestamp")),
    )


def _seat(pod: Object, run: RunRef) -> tuple[int, int] | None:
    """(slot, incarnation): by the labels of a pod of ours, by the name of one that has only taken our name."""
    if owner_uid(pod) == run.uid:
        found = (label(pod, Label.SLOT), label(pod, Label.INCARNATION))
        if all(re.fullmatch(r"\d{1,9}", text) for text in found):
            return int(found[0]), int(found[1])
    match = re.fullmatch(rf"{re.escape(run.name)}-(\d{{1,9}})-(\d{{1,9}})", name_of(pod))
    return (int(match[1]), int(match[2])) if match else None


def _phase(look: Look, end: Termination | None) -> PodPhase:
    phase = _PHASES.get(str(look.status.get("phase")), PodPhase.RUNNING)
    if phase is PodPhase.SUCCEEDED and end is not None and end.exit_code != ExitCode.DONE:
        return PodPhase.FAILED  # it exited with 0 only so that the kubelet does not start it again
    return phase


def _why(look: Look) -> Why:
    rules = FATES if look.over else TROUBLES
    return next((answer for rule in rules if (answer := rule(look)) is not None), ("", ""))


def _crash_looping(look: Look) -> float:
    """Seconds since the container ended, while the kubelet holds it back."""
    held_back = ((look.trainer.get("state") or {}).get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    ended_at = seconds(look.ended.get("finishedAt"))
    return max(0.0, look.now - ended_at) if held_back and ended_at else 0.0


# ---- the rules


def _node_lost(look: Look) -> Why | None:
    """Its node does not answer or is gone; what the pod's own status says is old."""
    if not look.node or not look.node_ready or look.node_ready.get(look.node, False):
        return None
    if look.node in look.node_ready:
        return "NodeLost", f"node {look.node} is not ready"
    return "NodeLost", f"node {look.node} is gone"


def _disrupted(look: Look) -> Why | None:
    """Somebody takes it away: scheduler, taint manager, an eviction, the garbage collector, its kubelet."""
    found = look.condition("DisruptionTarget")
    if found.get("status") != "True":
        return None
    if not look.over and not look.terminating and look.is_history(found.get("lastTransitionTime")):
        return None  # it was meant to go, and did not
    return str(found.get("reason", "DisruptionTarget")), str(found.get("message", ""))


def _said_of_the_pod(look: Look) -> Why | None:
    """What its kubelet says of the whole pod: Evicted, Preempting, Terminated, OutOfcpu, DeadlineExceeded, …"""
    reason = look.status.get("reason")
    return (str(reason), str(look.status.get("message", ""))) if reason else None


def _cannot_start(look: Look) -> Why | None:
    """A container that waits for something: its image, its configuration, or the end of a back-off."""
    for waiting in look.waiting:
        reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
        if not reason or (reason in _STARTING and not message):
            continue
        end = look.termination
        if reason == "CrashLoopBackOff" and end is not None:
            message = f"{message}; it ended with exit code {end.exit_code} ({end.reason})"
        return reason, message
    return None


def _not_scheduled(look: Look) -> Why | None:
    """No node takes it. The scheduler's message also tells of a claim that does not exist."""
    found = look.condition("PodScheduled")
    if look.node or found.get("status") != "False":
        return None
    return str(found.get("reason", "Unschedulable")), str(found.get("message", ""))


def _out_of_memory(look: Look) -> Why | None:
    """The kernel killed the container for its memory; it may run again by now."""
    end = look.termination
    return ("OOMKilled", end.message) if end is not None and end.reason == "OOMKilled" else None


def _ended(look: Look) -> Why | None:
    end = look.termination
    return (end.reason, end.message) if end is not None else None


TROUBLES: tuple[Callable[[Look], Why | None], ...] = (
    _node_lost,
    _disrupted,
    _said_of_the_pod,
    _cannot_start,
    _not_scheduled,
    _out_of_memory,
)
"""Of a pod that waits or runs."""

FATES: tuple[Callable[[Look], Why | None], ...] = (_said_of_the_pod, _disrupted, _out_of_memory, _ended)
"""Of a pod that is over. Where it was does not matter any more."""
