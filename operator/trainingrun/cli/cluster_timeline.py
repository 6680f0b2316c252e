"""The epochs of a run as a story: what began each, who was lost, from where it went on, and what that cost.

The records hold the evidence; the cause is the controller's judgement, read from the status. Pure; read by
`describe`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainingrun.api.conditions import timestamp
from trainingrun.api.constants import EpochCause
from trainingrun.api.status import RECENT_DISRUPTIONS
from trainingrun.cli.cluster_times import age, clock
from trainingrun.cli.output import one_line, table
from trainingrun.cluster.kubernetes import records
from trainingrun.control.failures import is_disruption
from trainingrun.control.ledger import steps_lost, summary_of
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.records import Epoch, RestoreSource, Trigger
from trainingrun.protocol.wire import WireError

_SHOWN = 3  # nodes or losses in one cell of the table


@dataclass(frozen=True)
class EpochStory:
    """One start of the processes. Times are seconds since 1970."""

    epoch: int
    at: float  # when its record was created: its beginning
    trigger: str  # what membership saw
    cause: str  # what the controller made of it; "" when it has not judged it, or forgot
    losses: tuple[str, ...]  # who was lost, or how a process ended: one phrase each
    members: tuple[tuple[int, str], ...]  # (slot, node), in the order of the ranks
    source: str  # Initial | Memory | Durable
    restored_step: int
    manifest: str  # of a durable restore point
    lost_steps: int
    next_step_seconds: float | None  # from the fault or the newcomer being seen; None until the first step
    disruption: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "time": timestamp(self.at),
            "trigger": self.trigger,
            "cause": self.cause or None,
            "disruption": self.disruption,
            "losses": list(self.losses),
            "members": [{"slot": slot, "node": node} for slot, node in self.members],
            "restored": {"source": self.source, "step": self.restored_step, "manifest": self.manifest},
            "lostSteps": self.lost_steps,
            "nextStepSeconds": self.next_step_seconds,
        }


def read_epochs(objects: Iterable[Mapping[str, Any]], run_uid: str) -> tuple[list[Epoch], list[str]]:
    """The run's epochs among ControllerRevisions, ascending, and what is wrong with those that cannot be read."""
    epochs: list[Epoch] = []
    unread: list[str] = []
    for item in objects:
        try:
            record = records.from_object(Epoch, item, run_uid)
        except WireError as error:
            unread.append(str(error))  # the rest of the story is still true
        else:
            epochs += [record] if record is not None else []
    return records.sort(epochs), unread


def timeline(epochs: Sequence[Epoch], status: Mapping[str, Any]) -> tuple[EpochStory, ...]:
    """`epochs` ascending."""
    judged = {item["epoch"]: item for item in (status.get("disruptions") or {}).get("recent") or []}
    known = {record.epoch: record for record in epochs}
    return tuple(
        _story(known.get(record.epoch - 1), record, known.get(record.epoch + 1), judged, status)
        for record in epochs
    )


def timeline_table(epochs: Sequence[EpochStory], now: float) -> str:
    rows = [
        (
            str(item.epoch),
            f"{clock(item.at, now)} ({age(item.at, now)})",
            item.trigger if item.cause in ("", item.trigger) else f"{item.cause} ({item.trigger})",
            one_line(_few(item.losses)) or "-",
            _few([node for _, node in item.members], "nodes"),
            _source(item),
            str(item.lost_steps),
            "-" if item.next_step_seconds is None else f"{item.next_step_seconds:.1f} s",
        )
        for item in epochs
    ]
    return table(("EPOCH", "BEGAN", "WHY", "LOST", "NODES", "FROM", "STEPS LOST", "NEXT STEP"), rows)


def _story(
    before: Epoch | None,
    record: Epoch,
    after: Epoch | None,
    judged: Mapping[int, Mapping[str, Any]],
    status: Mapping[str, Any],
) -> EpochStory:
    judgement = judged.get(record.epoch) or {}
    resize = _is_resize(record, judged, status)
    disruption = is_disruption(record) and not resize
    cause = judgement.get("cause", "")
    if resize:
        cause = EpochCause.SHRINKING.value
    elif not disruption:
        cause = (EpochCause.STARTED if record.trigger is Trigger.STARTED else EpochCause.GROWING).value
    return EpochStory(
        epoch=record.epoch,
        at=record.created_at,
        trigger=record.trigger.value,
        cause=cause,
        losses=_losses(before, record),
        members=tuple((member.slot, member.node) for member in record.members),
        source=record.restore.source.value,
        restored_step=record.restore.step,
        manifest=record.restore.manifest,
        lost_steps=judgement.get("lostSteps", steps_lost(before, record)),
        next_step_seconds=_next_step(record, after, judgement, status),
        disruption=disruption,
    )


def _is_resize(record: Epoch, judged: Mapping[int, Mapping[str, Any]], status: Mapping[str, Any]) -> bool:
    """Were its lost members not wanted any more? Then the controller has seen it, and counted no disruption."""
    accounted = (status.get("disruptions") or {}).get("accountedEpoch", 0)
    if not record.lost or record.epoch > accounted or record.epoch in judged:
        return False
    return len(judged) < RECENT_DISRUPTIONS or record.epoch > min(judged)  # older ones are forgotten


def _next_step(
    record: Epoch, after: Epoch | None, judgement: Mapping[str, Any], status: Mapping[str, Any]
) -> float | None:
    if judgement.get("recoverMillis") is not None:
        return float(judgement["recoverMillis"]) / 1000
    first = summary_of(record, after.previous).first_step_at if after is not None else 0.0
    stepping = (status.get("accounting") or {}).get("stepping") or {}
    if not first and stepping.get("epoch") == record.epoch:
        first = stepping["firstStepAtMillis"] / 1000
    return max(0.0, first - record.detected_at) if first else None


def _losses(before: Epoch | None, record: Epoch) -> tuple[str, ...]:
    """Members that vanished; processes that ended when none did; checkpoints that were damaged."""
    nodes = {
        member.slot: member.node for one in (before, record) if one is not None for member in one.members
    }
    if record.lost:
        return tuple(f"slot {one.slot} on {one.node}: {one.reason}" for one in record.lost)
    if record.trigger is Trigger.RESTORE_FAILED:
        known = before.damaged if before is not None else ()
        if found := [name for name in record.damaged if name not in known]:
            return tuple(f"{name} damaged" for name in found)
        failed = (one for one in record.exits if one.exit_code == ExitCode.NOT_FETCHED)
        return tuple(
            f"slot {one.slot} on {nodes.get(one.slot, 'a node')}: could not fetch the state" for one in failed
        )
    if record.trigger is not Trigger.PROCESS_DIED:
        return ()
    ends = [one for one in record.exits if one.exit_code]
    return tuple(
        dict.fromkeys(
            f"a rank of slot {one.slot} on {nodes.get(one.slot, 'a node')}: exit code {one.exit_code}"
            for one in ends
        )
    )


def _few(items: Sequence[str], many: str = "") -> str:
    if len(items) <= _SHOWN:
        return ", ".join(items)
    return f"{len(items)} {many}" if many else f"{', '.join(items[:_SHOWN])}, {len(items) - _SHOWN} more"


def _source(item: EpochStory) -> str:
    if item.source == RestoreSource.INITIAL.value:
        return "initial weights"
    where = "memory" if item.source == RestoreSource.MEMORY.value else "durable checkpoint"
    return f"step {item.restored_step}, {where}"
