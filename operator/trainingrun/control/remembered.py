"""How members ended, kept until their epoch is accounted for: a pod may be gone before membership tells of
its loss.

A failed pod is deleted at once, because its seat needs a new one; its last words are what the cause of the
disruption is judged by. So status keeps them, for the few pods that matter, until the record that follows
is folded. Pure; read by `folding`, written by `decide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainingrun.control.observed import ENDED, Observed
from trainingrun.ports import Pod, PodPhase
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.records import Epoch

MOST_ENDS = 8  # a burst has one cause; the first few pods tell it
_MESSAGE_BYTES = 1024

Pods = Mapping[tuple[int, int], Pod]
"""Pods by (slot, incarnation)."""


def member_pods(observed: Observed) -> Pods:
    """The run's pods, those included that are gone and of which status still knows how they ended."""
    gone = {}
    for item in (observed.run.status.get("accounting") or {}).get("ended") or []:
        pod = _read(observed, item)
        gone[pod.slot, pod.incarnation] = pod
    return {**gone, **{(pod.slot, pod.incarnation): pod for pod in observed.pods}}


def ends_to_keep(observed: Observed, newest: Epoch | None) -> list[dict[str, Any]]:
    """The block `status.accounting.ended`: members of the newest accounted epoch that are known to have
    ended.
    """
    if newest is None:
        return []
    pods = member_pods(observed)
    members = [pods.get((member.slot, member.incarnation)) for member in newest.members]
    ended = [pod for pod in members if pod is not None and (pod.phase in ENDED or pod.reason)]
    return [_write(pod) for pod in ended if pod.phase is not PodPhase.SUCCEEDED][:MOST_ENDS]


def _read(observed: Observed, item: Mapping[str, Any]) -> Pod:
    end = None
    if "exitCode" in item:
        end = Termination(item["exitCode"], item.get("end", ""), item.get("message", ""))
    return Pod(
        name="",
        uid="",
        run_uid=observed.run.uid,
        slot=item["slot"],
        incarnation=item["incarnation"],
        revision="",
        phase=PodPhase.FAILED,
        node="",
        ready=False,
        terminating=True,
        restarts=0,
        reason=item.get("reason", ""),
        message=item.get("message", ""),
        termination=end,
    )


def _write(pod: Pod) -> dict[str, Any]:
    words = pod.termination.message if pod.termination is not None else pod.message
    data: dict[str, Any] = {
        "slot": pod.slot,
        "incarnation": pod.incarnation,
        "reason": pod.reason,
        "message": words.encode()[-_MESSAGE_BYTES:].decode(errors="ignore"),
    }
    if pod.termination is not None:
        data |= {"exitCode": pod.termination.exit_code, "end": pod.termination.reason}
    return data
