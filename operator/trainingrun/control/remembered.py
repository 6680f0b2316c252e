"""What status keeps until its epoch is accounted for, because nobody may be left to tell it then.

How members ended: a pod may be gone before membership tells of its loss. How far the epoch had come: when membership
and all agents are gone at once, the next record knows nothing of it.

A failed pod is deleted at once, because its seat needs a new one; its last words are what the cause of the
disruption is judged by. So status keeps them, for the few pods that matter, until the record that follows
is folded. The same goes for a pod that ended before it was ever a member: why is what people need to know, until
its seat has a member. Pure; read by `folding` and `obstacles`, written by `reporting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainingrun.control.observed import ENDED, Observed, Seat
from trainingrun.ports import Pod, PodPhase
from trainingrun.protocol import wire
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import Termination
from trainingrun.protocol.records import Epoch, EpochSummary, MachineSpeed

MOST_ENDS = 8  # a burst has one cause; the first few pods tell it
_MESSAGE_BYTES = 1024

Pods = Mapping[tuple[int, int], Pod]
"""Pods by (slot, incarnation)."""


def member_pods(observed: Observed) -> Pods:
    """The run's pods, those included that are gone and of which status still knows how they ended."""
    gone = {(pod.slot, pod.incarnation): pod for pod in _ended_before(observed)}
    return {**gone, **{(pod.slot, pod.incarnation): pod for pod in observed.pods}}


def last_end(observed: Observed, seat: Seat) -> Pod | None:
    """The newest pod of this seat that ended, by itself, before it was ever a member.

    None once the seat has a member. Pods that are being deleted are not asked: they were told to end.
    """
    pods = [pod for pod in _ended_before(observed) if pod.slot == seat.slot]
    pods += [pod for pod in seat.own if not pod.terminating and _ended_by_itself(pod)]
    return max(
        (pod for pod in pods if pod.incarnation > seat.joined), key=lambda pod: pod.incarnation, default=None
    )


def ends_to_keep(observed: Observed, newest: Epoch | None) -> list[dict[str, Any]]:
    """The block `status.accounting.ended`: members of the newest accounted epoch that are known to have ended, and
    the newest pods of seats whose pods never were members.
    """
    members = () if newest is None else newest.members
    pods = member_pods(observed) if members else {}
    known = [pods.get((member.slot, member.incarnation)) for member in members]
    ended = [pod for pod in known if pod is not None and (pod.phase in ENDED or pod.reason)]
    kept = [pod for pod in ended if pod.phase is not PodPhase.SUCCEEDED]
    if len(kept) < MOST_ENDS:
        unproven = {slot for slot, seat in observed.seats.items() if seat.misses > 0}
        slots = sorted(unproven | {pod.slot for pod in _ended_before(observed)})
        early = (last_end(observed, observed.seats.get(slot, Seat(slot))) for slot in slots)
        kept += [pod for pod in early if pod is not None and pod not in kept]
    return [_write(pod) for pod in kept[:MOST_ENDS]]


def _ended_by_itself(pod: Pod) -> bool:
    end = pod.termination
    if end is None:
        return pod.phase is PodPhase.FAILED
    return end.exit_code not in (ExitCode.DONE, ExitCode.LEFT)


def _ended_before(observed: Observed) -> list[Pod]:
    """As status remembers them."""
    items = (observed.run.status.get("accounting") or {}).get("ended") or []
    return [_read(observed, item) for item in items]


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


def steps_known(observed: Observed) -> EpochSummary | None:
    """Of the newest epoch: as heard now, or as remembered while membership is away or has heard of no step yet."""
    epoch, view = observed.epoch, observed.view
    if epoch is None:
        return None
    known = _remembered(observed)
    if view is not None and view.progress is not None:
        known = _further(known, view.progress.summary, epoch.epoch)
    return known if known is not None and known.epoch == epoch.epoch else None


def stepping_to_keep(observed: Observed, final: Termination | None) -> dict[str, Any] | None:
    """The block `status.accounting.stepping`: of the newest epoch, as heard now, as remembered, or as told by the
    last words of the run. It stays when the run is over: no record will ever tell of its last epoch.
    """
    epoch = observed.epoch
    if epoch is None:
        return None
    known = steps_known(observed)
    if final is not None:
        known = _further(known, final.summary, epoch.epoch)
    if known is None or known.epoch != epoch.epoch:
        return None
    block = {
        "epoch": known.epoch,
        "firstStep": known.first_step,
        "firstStepAtMillis": round(known.first_step_at * 1e3),
        "lastStep": known.last_step,
        "lastStepAtMillis": round(known.last_step_at * 1e3),
        "tokens": known.tokens,
        "stepMicros": round(known.step_seconds * 1e6),
        "snapshotStallPermille": known.snapshot_stall_permille,
    }
    if known.peak_bytes:
        block["peakBytes"] = known.peak_bytes
    if known.speed is not None:
        block["speed"] = wire.to_json(known.speed)
    return block


def with_what_is_remembered(observed: Observed, before: Epoch | None, record: Epoch) -> Epoch:
    """The record, with what the epoch before it had reached by our own memory if the record knows less."""
    if before is None:
        return record
    previous = _further(record.previous, _remembered(observed), before.epoch)
    return record if previous is None else replace(record, previous=previous)


def _further(one: EpochSummary | None, other: EpochSummary | None, epoch: int) -> EpochSummary | None:
    """The one of these that is of the epoch and knows more of it; the first when neither is."""
    if other is None or other.epoch != epoch or other.first_step_at <= 0:
        return one
    if one is None or one.epoch != epoch or one.last_step < other.last_step:
        return other
    return one


def _remembered(observed: Observed) -> EpochSummary | None:
    return stepping_in(observed.run.status)


def stepping_in(status: Mapping[str, Any]) -> EpochSummary | None:
    """What the block `accounting.stepping` of a status says; None where there is none."""
    data = (status.get("accounting") or {}).get("stepping")
    if not data:
        return None
    return EpochSummary(
        epoch=data["epoch"],
        first_step_at=data["firstStepAtMillis"] / 1e3,
        first_step=data["firstStep"],
        last_step=data["lastStep"],
        last_step_at=data["lastStepAtMillis"] / 1e3,
        tokens=data["tokens"],
        step_seconds=data["stepMicros"] / 1e6,
        snapshot_stall_permille=data.get("snapshotStallPermille", 0),
        peak_bytes=data.get("peakBytes", 0),
        speed=wire.from_json(MachineSpeed, data["speed"]) if data.get("speed") else None,
    )
