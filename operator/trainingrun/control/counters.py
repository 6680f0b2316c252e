"""What status remembers of the epochs that were accounted for, as one frozen value.

Everything that must survive a restart of the controller is in here and only integers are counted, so
reading and writing status loses nothing. `accounted_epoch` says up to which record; it is written together
with the counts, which is why each record counts once. Pure; read by `decide`, changed by `folding`,
written by `reporting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainingrun.api.constants import Cause
from trainingrun.control.failures import Judgement
from trainingrun.control.ledger import Ledger
from trainingrun.control.measured import (
    Look,
    MeasuredSize,
    read_look,
    read_measured,
    write_look,
    write_measured,
)


@dataclass(frozen=True)
class Disruption:
    """One of the newest disruptions. `recover_millis` is None until the first step after it is known."""

    epoch: int
    cause: str
    node: str
    source: str
    lost_steps: int
    recover_millis: int | None = None


@dataclass(frozen=True)
class Moment:
    """Disruptions of one cause at one time (whole seconds since 1970, rounded where a window is long)."""

    at: int
    count: int


@dataclass(frozen=True)
class Streak:
    """Restarts since training last got further: neither a newer restore point nor a further step."""

    restarts: int = 0
    restore_step: int = -1
    last_step: int = -1
    first: Judgement | None = None  # the cause that began it


@dataclass(frozen=True)
class Counters:
    accounted_epoch: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    lost_steps: int = 0
    by_cause: Mapping[str, int] = field(default_factory=dict)
    recent: tuple[Disruption, ...] = ()  # newest last
    times: Mapping[str, tuple[Moment, ...]] = field(default_factory=dict)  # of causes with a limit
    streak: Streak = field(default_factory=Streak)
    measured: tuple[MeasuredSize, ...] = ()  # of accounted epochs, the newest measured last
    look: Look = field(default_factory=Look)


def read_counters(status: Mapping[str, Any]) -> Counters:
    disruptions = status.get("disruptions") or {}
    accounting = status.get("accounting") or {}
    times: dict[str, tuple[Moment, ...]] = {}
    for item in accounting.get("times") or []:
        times[item["cause"]] = (*times.get(item["cause"], ()), Moment(item["at"], item["count"]))
    return Counters(
        accounted_epoch=disruptions.get("accountedEpoch", 0),
        ledger=Ledger(
            productive=accounting.get("productiveMillis", 0),
            lost={item["part"]: item["millis"] for item in accounting.get("lost") or []},
            furthest_step=accounting.get("furthestStep", 0),
        ),
        lost_steps=disruptions.get("lostSteps", 0),
        by_cause={item["cause"]: item["count"] for item in disruptions.get("byCause") or []},
        recent=tuple(_read_recent(item) for item in disruptions.get("recent") or []),
        times=times,
        streak=_read_streak(accounting.get("streak") or {}),
        measured=read_measured(accounting),
        look=read_look(accounting),
    )


def write_disruptions(counters: Counters) -> dict[str, Any]:
    """The block `status.disruptions`, for people."""
    return {
        "accountedEpoch": counters.accounted_epoch,
        "byCause": [{"cause": cause, "count": count} for cause, count in sorted(counters.by_cause.items())],
        "lostSteps": counters.lost_steps,
        "recent": [_write_recent(item) for item in counters.recent],
    }


def write_accounting(counters: Counters) -> dict[str, Any]:
    """The block `status.accounting`: what the counting goes on from after a restart of the controller."""
    ledger = counters.ledger
    block: dict[str, Any] = {
        "productiveMillis": ledger.productive,
        "lost": [{"part": str(part), "millis": amount} for part, amount in sorted(ledger.lost.items())],
        "furthestStep": ledger.furthest_step,
        "times": [
            {"cause": cause, "at": moment.at, "count": moment.count}
            for cause, moments in sorted(counters.times.items())
            for moment in moments
        ],
    }
    if counters.measured:
        block["measured"] = write_measured(counters.measured)
    if counters.look.looks:
        block["tuning"] = write_look(counters.look)
    if counters.streak.restarts:
        block["streak"] = _write_streak(counters.streak)
    return block


def read_judgement(data: Mapping[str, Any]) -> Judgement:
    return Judgement(
        Cause(data["cause"]),
        data.get("slot", -1),
        data.get("node", ""),
        data.get("exitCode", 0),
        data.get("message", ""),
    )


def write_judgement(judgement: Judgement) -> dict[str, Any]:
    """The form of `status.failure`. What is unknown is left out."""
    data: dict[str, Any] = {"cause": judgement.cause.value, "message": judgement.message}
    if judgement.slot >= 0:
        data["slot"] = judgement.slot
    if judgement.node:
        data["node"] = judgement.node
    if judgement.exit_code:
        data["exitCode"] = judgement.exit_code
    return data


def _read_recent(item: Mapping[str, Any]) -> Disruption:
    return Disruption(
        epoch=item["epoch"],
        cause=item["cause"],
        node=item.get("node", ""),
        source=item["source"],
        lost_steps=item.get("lostSteps", 0),
        recover_millis=item.get("recoverMillis"),
    )


def _write_recent(item: Disruption) -> dict[str, Any]:
    data: dict[str, Any] = {
        "epoch": item.epoch,
        "cause": item.cause,
        "node": item.node,
        "source": item.source,
        "lostSteps": item.lost_steps,
    }
    if item.recover_millis is not None:
        data["recoverMillis"] = item.recover_millis
    return data


def _read_streak(data: Mapping[str, Any]) -> Streak:
    first = data.get("first")
    return Streak(
        restarts=data.get("restarts", 0),
        restore_step=data.get("restoreStep", -1),
        last_step=data.get("lastStep", -1),
        first=read_judgement(first) if first else None,
    )


def _write_streak(streak: Streak) -> dict[str, Any]:
    data: dict[str, Any] = {
        "restarts": streak.restarts,
        "restoreStep": streak.restore_step,
        "lastStep": streak.last_step,
    }
    if streak.first is not None:
        data["first"] = write_judgement(streak.first)
    return data
