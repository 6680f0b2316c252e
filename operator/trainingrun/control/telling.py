"""Events: one line each, for people. What happened is read from records and from what changed in status.

Events are told once because each follows from a difference that the next status no longer shows. They may
get lost when the controller dies between the status and them; nothing is ever decided from them. Pure;
called by `decide`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainingrun.api.constants import ConditionType, EventReason, Reason
from trainingrun.control.counters import Counters, Disruption
from trainingrun.control.failures import is_disruption
from trainingrun.control.ledger import steps_lost
from trainingrun.control.losses import what_was_lost
from trainingrun.control.observed import Observed, Refusal
from trainingrun.control.resizing import resizes
from trainingrun.ports import EventRecord
from trainingrun.protocol.records import Epoch, RestoreSource, Trigger

_WORRIES = {
    Reason.INVALID_SPEC: EventReason.INVALID_SPEC,
    Reason.PLAN_INFEASIBLE: EventReason.PLAN_INFEASIBLE,
    Reason.REVISION_CONFLICT: EventReason.PLAN_INFEASIBLE,
    Reason.REVISION_MISSING: EventReason.REVISION_MISSING,
    Reason.CLAIM_MISSING: EventReason.CLAIM_UNUSABLE,
    Reason.CLAIM_NOT_SHARED: EventReason.CLAIM_UNUSABLE,
    Reason.CLAIM_READ_ONLY: EventReason.CLAIM_UNUSABLE,
    Reason.CLAIM_PENDING: EventReason.CLAIM_UNUSABLE,
    Reason.IMAGE_ERROR: EventReason.IMAGE_ERROR,
    Reason.POD_CANNOT_START: EventReason.POD_CANNOT_START,
    Reason.NO_USABLE_CHECKPOINT: EventReason.NO_USABLE_CHECKPOINT,
    Reason.WAITING_FOR_NODES: EventReason.WAITING_FOR_NODES,
    Reason.MEMBERSHIP_UNREACHABLE: EventReason.MEMBERSHIP_UNREACHABLE,
}


def tell_epochs(
    observed: Observed, folded: Sequence[Epoch], old: Counters, new: Counters, now: float
) -> list[EventRecord]:
    """Starts and changes of size when their record is folded; a recovery when its first step is known."""
    wanted = resizes(observed)
    chain = [observed.before, observed.last, *folded]
    ended = {record.epoch: before for before, record in itertools.pairwise(chain) if record is not None}
    events = [
        _tell_change(ended[record.epoch], record, now)
        for record in folded
        if not is_disruption(record) or record.epoch in wanted
    ]
    records = {record.epoch: record for record in chain[1:] if record is not None}
    told = {item.epoch for item in old.recent if item.recover_millis is not None}
    for item in new.recent:
        recovered = item.recover_millis is not None and item.epoch not in told
        # One that the next record interrupted before its first step is told with that record.
        interrupted = item.recover_millis is None and old.accounted_epoch <= item.epoch < new.accounted_epoch
        if item.epoch in records and (recovered or interrupted):
            events.append(_tell_recovery(observed, ended[item.epoch], records[item.epoch], item, now))
    return events


def tell_status(old: Mapping[str, Any], new: Mapping[str, Any], now: float) -> Iterator[EventRecord]:
    """What people want to know of a change of status."""
    saved, before = _durable(new), _durable(old)
    if saved.get("manifest") and saved.get("manifest") != before.get("manifest"):
        text = f"step {saved['step']} is saved as {saved['manifest']}"
        yield EventRecord(now, "Normal", EventReason.CHECKPOINT_SAVED, text)
    was, ready = _ready(old).get("reason"), _ready(new)
    reason, message = ready.get("reason"), ready.get("message", "")
    if reason != was and reason == Reason.COMPLETED:
        step, permille = new["progress"]["step"], new["goodput"]["permille"]
        yield EventRecord(now, "Normal", EventReason.COMPLETED, f"step {step}, goodput {permille / 10:.1f} %")
    elif reason != was and new.get("failure") is not None:
        yield EventRecord(now, "Warning", EventReason.FAILED, f"{reason}: {message}")
    elif reason != was and reason in _WORRIES:
        yield EventRecord(now, "Warning", _WORRIES[Reason(reason)], message)


def tell_refusals(observed: Observed, now: float) -> list[EventRecord]:
    """One line when the API server begins to refuse something; a first refusal is told in the same reconcile."""
    if not observed.just_refused:
        return []
    slots = [slot for slot in sorted(observed.refused) if _is_new(observed.refused[slot], now)]
    texts = []
    if slots:
        which = f"seat {slots[0]}" if len(slots) == 1 else f"{len(slots)} seats"
        texts.append(f"a pod for {which} is refused: {observed.refused[slots[0]].message}")
    if observed.refused_record is not None and _is_new(observed.refused_record, now):
        texts.append(f"the run's record is refused: {observed.refused_record.message}")
    return [EventRecord(now, "Warning", EventReason.REFUSED, text) for text in texts]


def _is_new(refusal: Refusal, now: float) -> bool:
    return refusal.count == 1 and refusal.at == now


def _tell_change(ended: Epoch | None, record: Epoch, now: float) -> EventRecord:
    rung = record.rung
    shape = f"data {rung.data} x tensor {rung.tensor} x pipeline {rung.pipeline}"
    shape += f" x context {rung.context}" if rung.context > 1 else ""
    if ended is None or record.trigger is Trigger.STARTED:
        text = f"epoch {record.epoch}: {_nodes(len(record.members))}, {shape}, {_from(record)}"
        return EventRecord(now, "Normal", EventReason.EPOCH_STARTED, text)
    old = {member.slot for member in ended.members}
    came = ", ".join(member.node for member in record.members if member.slot not in old)
    grown = len(record.members) >= len(ended.members)
    reason = EventReason.GROWN if grown else EventReason.SHRUNK
    left = ", ".join(lost.node for lost in record.lost)
    text = f"{came} joined: " if grown and came else f"{left} left: " if left and not grown else ""
    text += f"{_step_of_size(ended, record)}, {shape}, {_from(record)}"
    again = steps_lost(ended, record)
    text += f", {_steps(again)} lost" if again else ""
    return EventRecord(now, "Normal", reason, text)


def _tell_recovery(
    observed: Observed, ended: Epoch | None, record: Epoch, item: Disruption, now: float
) -> EventRecord:
    if record.lost:
        reason, what = what_was_lost(record, ended, observed, item.cause)
    elif record.trigger is Trigger.RESTORE_FAILED:
        reason, what = _what_failed_to_restore(ended, record, item)
    else:
        what = f"a process on {item.node or 'a node'} died"
        reason = EventReason.PROCESS_DIED
    took = "" if item.recover_millis is None else f", {item.recover_millis / 1000:.1f} s"
    if item.recover_millis is None:
        took = ", interrupted before its first step"
    size = _step_of_size(ended, record)
    text = f"{what} ({item.cause}): {size}, {_from(record)}, {_steps(item.lost_steps)} lost{took}"
    return EventRecord(now, "Warning", reason, text)


def _what_failed_to_restore(ended: Epoch | None, record: Epoch, item: Disruption) -> tuple[EventReason, str]:
    known = set(ended.damaged) if ended is not None else set()
    if found := [name for name in record.damaged if name not in known]:
        return EventReason.CHECKPOINT_DAMAGED, f"checkpoint damaged: {', '.join(found)}"
    return (
        EventReason.RESTORE_FAILED,
        f"{item.node or 'a node'} could not fetch the state; nothing is damaged",
    )


def _from(record: Epoch) -> str:
    restore = record.restore
    if restore.source is RestoreSource.INITIAL:
        return "from initial weights"
    return f"restored step {restore.step} from {restore.source.value}"


def _step_of_size(ended: Epoch | None, record: Epoch) -> str:
    count = len(record.members)
    if ended is None or len(ended.members) == count:
        return _nodes(count)
    return f"{len(ended.members)} -> {_nodes(count)}"


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _ready(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found = [item for item in status.get("conditions") or [] if item["type"] == ConditionType.READY]
    return found[0] if found else {}


def _durable(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return (status.get("checkpoint") or {}).get("durable") or {}
