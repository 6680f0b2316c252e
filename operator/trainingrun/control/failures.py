"""Why training stopped: one cause for each disruption, judged from an epoch's record and from pods and nodes.

`RULES` is the documentation: the first rule with an answer decides. When a member was lost, the exits of
the others are consequences (their collectives broke) and are not evidence. Pure; called by `folding` once
for each record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trainingrun.api.constants import Cause
from trainingrun.control.remembered import Pods
from trainingrun.ports import Node, Pod
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.records import Epoch, Lost, RankExit, Trigger

_OWN_FAULT = (Cause.APPLICATION, Cause.OUT_OF_MEMORY, Cause.HANG)
_KILLED = 137
_ENDED_FROM_OUTSIDE = frozenset({_KILLED, 143})  # SIGKILL, SIGTERM: a person, a kubelet, the kernel
_TAINTED = "DeletionByTaintManager"
_LAST_WORDS = 600  # characters; an exception is at the end of an output
NOT_A_FAULT = frozenset({ExitCode.DONE, ExitCode.LEFT, ExitCode.MEMBERSHIP_LOST})
# A process that ends closes its connection, whatever ended it. These did not: the node or the network may be gone.
UNEXPLAINED = frozenset({"Silent", "Unresponsive"})
PREEMPTED = frozenset(  # reasons of pods, as Kubernetes and the clouds' node agents write them
    {
        "Preempted",
        "Preempting",
        "PreemptionByScheduler",
        "Evicted",
        "EvictionByEvictionAPI",
        _TAINTED,
        "TerminationByKubelet",
        "Terminated",
        "NodeShutdown",
        "Shutdown",
    }
)
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|MemoryError|cannot allocate memory|OOM.?Kill", re.I
)
_HANG = re.compile(r"watchdog|no step for|timed? ?out (waiting|after)|hang detected", re.I)
# What ends ranks without being the work of the training code: storage, and the server that they are forked from.
_SURROUNDINGS = re.compile(r"checkpoint \S+ was not saved|its fork server died")
# What a rank says when the other end of a collective went away.
_BROKEN_COLLECTIVE = re.compile(
    r"connection (closed|reset|refused) by|connection (closed|reset|was closed)|broken pipe|DistBackendError"
    r"|ProcessGroup\w*.{0,80}(abort|fail)|gloo.{0,80}(closed|reset|fail|error)|NCCL.{0,40}(remote|abort)",
    re.I | re.S,
)


@dataclass(frozen=True)
class Evidence:
    """What is known of the end of the previous epoch."""

    record: Epoch
    exits: tuple[RankExit, ...]  # that are faults and no mere consequence of another's end
    lost: tuple[Lost, ...]
    lost_pods: tuple[Pod, ...]  # pods of the lost members, as far as they still exist
    dead_nodes: frozenset[str]  # of lost members: not ready or gone


@dataclass(frozen=True)
class Judgement:
    """A cause, and whoever began it. `slot` is -1 and `exit_code` 0 where they are unknown."""

    cause: Cause
    slot: int
    node: str
    exit_code: int
    message: str


def is_disruption(record: Epoch) -> bool:
    """Did this epoch begin because something broke? A start, growth or an agreed change is no disruption."""
    return bool(record.lost) or record.trigger in (
        Trigger.MEMBER_LOST,
        Trigger.PROCESS_DIED,
        Trigger.RESTORE_FAILED,
    )


def is_away(node: str, nodes: Mapping[str, Node]) -> bool:
    """Is this node not ready or gone? Unknown, so no, where the controller may not see nodes at all."""
    return bool(node) and bool(nodes) and not (node in nodes and nodes[node].ready)


def judge(record: Epoch, before: Epoch | None, pods: Pods, nodes: Mapping[str, Node]) -> Judgement:
    """The cause of the disruption that `record` repairs. `before` is the record of the epoch that ended."""
    evidence = _gather(record, before, pods, nodes)
    cause = next(answer for rule in RULES if (answer := rule(evidence)) is not None)
    node_of = {member.slot: member.node for member in before.members} if before is not None else {}
    if evidence.lost and not evidence.exits:
        return _of_the_lost(evidence, cause)
    if evidence.exits:
        first = min(evidence.exits, key=_blame)
        return Judgement(cause, first.slot, node_of.get(first.slot, ""), first.exit_code, first.message)
    damaged = ", ".join(record.damaged)
    return Judgement(cause, -1, "", 0, f"damaged: {damaged}" if damaged else record.trigger.value)


def _of_the_lost(evidence: Evidence, cause: Cause) -> Judgement:
    """Last words are given only where they are the cause; a pod on a dead node may still hold older ones."""
    lost = evidence.lost[0]
    pod = evidence.lost_pods[0] if evidence.lost_pods else None
    end = pod.termination if pod is not None and cause in _OWN_FAULT else None
    words = end.message if end is not None else ""
    words = words or (pod.message if pod is not None else "") or f"{lost.node}: {lost.reason}"
    return Judgement(cause, lost.slot, lost.node, end.exit_code if end is not None else 0, words)


def _gather(record: Epoch, before: Epoch | None, pods: Pods, nodes: Mapping[str, Node]) -> Evidence:
    gone = {lost.slot for lost in record.lost}
    faults = [end for end in record.exits if end.exit_code not in NOT_A_FAULT]
    if gone:
        faults = [end for end in faults if end.slot in gone]
    first_hand = [end for end in faults if not _is_consequence(end)]
    found = [pods.get((lost.slot, lost.incarnation)) for lost in record.lost]
    lost_pods = [without_old_words(pod, before) for pod in found if pod is not None]
    dead = {lost.node for lost in record.lost if is_away(lost.node, nodes)}
    return Evidence(record, tuple(first_hand), record.lost, tuple(lost_pods), frozenset(dead))


def _is_consequence(end: RankExit) -> bool:
    """The other end of its collective went away. A node that could not fetch had no ranks yet, whatever broke."""
    fetching = end.exit_code == ExitCode.NOT_FETCHED
    return not fetching and _BROKEN_COLLECTIVE.search(end.message[-_LAST_WORDS:]) is not None


def without_old_words(pod: Pod, before: Epoch | None) -> Pod:
    """A container that was restarted in place keeps the last words of the one before: of an earlier epoch."""
    end = pod.termination
    if end is None or before is None or not 0 < end.epoch < before.epoch:
        return pod
    return replace(pod, termination=None)


def _blame(end: RankExit) -> tuple[bool, int, int]:
    """A rank that says something of its own comes before one that was killed."""
    return (end.exit_code == _KILLED, end.slot, end.local_rank)


# ---- the rules, in order


def _reclaimed(evidence: Evidence) -> Cause | None:
    """The pod of a lost member was taken away on purpose: by a spot reclaim, a drain, or a more important pod.

    A taint alone says nothing when the node is dead, because Kubernetes taints dead nodes too. A pod that somebody
    deletes carries no such mark: Infrastructure, as for anything else that vanishes.
    """
    reasons = {pod.reason for pod in evidence.lost_pods} & PREEMPTED
    if reasons == {_TAINTED} and evidence.dead_nodes:
        return None
    return Cause.PREEMPTION if reasons else None


def _damaged_checkpoint(evidence: Evidence) -> Cause | None:
    """The restore point failed its checksums: storage or memory flipped bits; the training code is not at
    fault.
    """
    codes = {end.exit_code for end in evidence.exits}
    damaged = evidence.record.damaged and evidence.record.trigger is Trigger.RESTORE_FAILED
    return Cause.INFRASTRUCTURE if damaged or ExitCode.CHECKPOINT_DAMAGED in codes else None


def _not_fetched(evidence: Evidence) -> Cause | None:
    """A node could not get the state from those that hold it: the network between them, or its own memory is full."""
    found = any(end.exit_code == ExitCode.NOT_FETCHED for end in evidence.exits)
    return Cause.INFRASTRUCTURE if found else None


def _dead_node(evidence: Evidence) -> Cause | None:
    """The node of a lost member is not ready or gone; whatever its processes said last does not matter."""
    lost = any(pod.reason == "NodeLost" for pod in evidence.lost_pods)  # even if the node is back by now
    return Cause.INFRASTRUCTURE if lost or evidence.dead_nodes else None


def _out_of_memory(evidence: Evidence) -> Cause | None:
    """The kernel killed the container for memory, or a rank could not get memory from host or device."""
    words = [end.message for end in evidence.exits]
    for pod in evidence.lost_pods:
        words += [pod.reason, pod.message, pod.termination.message if pod.termination else ""]
    return Cause.OUT_OF_MEMORY if any(_OUT_OF_MEMORY.search(text) for text in words) else None


def _surroundings(evidence: Evidence) -> Cause | None:
    """A checkpoint could not be written for good, or the server that ranks are forked from was killed."""
    found = any(_SURROUNDINGS.search(end.message) for end in evidence.exits)
    return Cause.INFRASTRUCTURE if found else None


def _hang(evidence: Evidence) -> Cause | None:
    """The agent was there but its ranks did not answer, or a watchdog ended a collective that nobody left."""
    unresponsive = any(lost.reason == "Unresponsive" for lost in evidence.lost)
    return Cause.HANG if unresponsive or any(_HANG.search(end.message) for end in evidence.exits) else None


def _lost_to_its_own_error(evidence: Evidence) -> Cause | None:
    """The agent of a lost member ended with an error of its own, on a node that is fine."""
    ends = [pod.termination for pod in evidence.lost_pods if pod.termination is not None]
    own = any(end.exit_code not in NOT_A_FAULT | _ENDED_FROM_OUTSIDE for end in ends)
    return Cause.APPLICATION if own else None


def _raised(evidence: Evidence) -> Cause | None:
    """A rank ended with an exit code of its own choice: the training code raised."""
    return Cause.APPLICATION if any(end.exit_code != _KILLED for end in evidence.exits) else None


def _anything_else(evidence: Evidence) -> Cause | None:
    """A member vanished, a rank was killed, a connection broke: nothing points at the training code."""
    return Cause.INFRASTRUCTURE


RULES: tuple[Callable[[Evidence], Cause | None], ...] = (
    _reclaimed,
    _damaged_checkpoint,
    _not_fetched,
    _dead_node,
    _out_of_memory,
    _surroundings,
    _hang,
    _lost_to_its_own_error,
    _raised,
    _anything_else,
)
