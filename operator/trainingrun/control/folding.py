"""Folds epoch records into the counters, each once and in order, and finds the first limit that is spent.

A record whose evidence is still on its way (a node that is dead but does not show it yet) is left until it is
there (see `evidence`), and everything after it as well. Pure; called by `decide`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainingrun.api.constants import Reason
from trainingrun.control.counters import Counters, Disruption, Moment, Streak
from trainingrun.control.evidence import Look, deadline, is_complete
from trainingrun.control.failures import Judgement, is_disruption, judge
from trainingrun.control.ledger import close_epoch, millis, steps_lost, summary_of
from trainingrun.control.measured import with_measured
from trainingrun.control.observed import Observed
from trainingrun.control.policy import Policy
from trainingrun.control.remembered import member_pods, with_what_is_remembered
from trainingrun.control.resizing import resizes
from trainingrun.protocol.records import Epoch, EpochSummary

_MOMENTS = 64


@dataclass(frozen=True)
class Failure:
    """Why the run gives up: a reason of the Failed condition, the words for it, and the first cause."""

    reason: Reason
    message: str
    first: Judgement | None = None


@dataclass(frozen=True)
class Folded:
    counters: Counters
    failure: Failure | None = None
    folded: tuple[Epoch, ...] = ()
    revisit_at: float | None = None  # when a record that waits for evidence is judged without it


def fold(observed: Observed, counters: Counters, now: float, policy: Policy, *, wait: bool = True) -> Folded:
    """Fold what is ready. `wait=False` (the run is over) judges everything by what is known now."""
    before = observed.last
    pods = member_pods(observed)
    wanted = resizes(observed)
    failure: Failure | None = None
    folded: list[Epoch] = []
    for recorded in observed.fresh:
        record = with_what_is_remembered(observed, before, recorded)
        judgement = None
        if is_disruption(record) and record.epoch not in wanted:
            last = deadline(record, policy)
            if wait and now < last and not is_complete(Look(record, before, pods, observed, now, policy)):
                return Folded(counters, failure, tuple(folded), last)
            judgement = _shorten(judge(record, before, pods, observed.nodes), policy)
        counters = _fold_one(counters, observed.run.created_at, before, record, judgement, wanted, policy)
        counters = _keep_times(counters, record, judgement, _limits(observed))
        if judgement is not None and failure is None:
            failure = _spent(counters, record, judgement, observed)
        folded.append(record)
        before = record
    return Folded(counters, failure, tuple(folded))


def note_first_step(counters: Counters, epoch: Epoch | None, summary: EpochSummary | None) -> Counters:
    """Fill in how long the recovery into `epoch` took, once its first step is known."""
    known = summary_of(epoch, summary)
    if epoch is None or known.first_step_at <= 0:
        return counters
    took = max(0, millis(known.first_step_at) - millis(epoch.detected_at))
    recent = tuple(
        replace(item, recover_millis=took)
        if item.epoch == epoch.epoch and item.recover_millis is None
        else item
        for item in counters.recent
    )
    return replace(counters, recent=recent)


def _fold_one(
    counters: Counters,
    created_at: float,
    before: Epoch | None,
    record: Epoch,
    judgement: Judgement | None,
    wanted: Collection[int],
    policy: Policy,
) -> Counters:
    counters = note_first_step(counters, before, record.previous)
    counters = replace(
        counters,
        accounted_epoch=record.epoch,
        ledger=close_epoch(counters.ledger, created_at, before, record, wanted),
        lost_steps=counters.lost_steps + steps_lost(before, record),
        measured=with_measured(counters.measured, before, record.previous),
    )
    if judgement is None:
        return counters
    entry = Disruption(
        epoch=record.epoch,
        cause=judgement.cause.value,
        node=judgement.node,
        source=record.restore.source.value,
        lost_steps=steps_lost(before, record),
    )
    cause = judgement.cause.value
    return replace(
        counters,
        by_cause={**counters.by_cause, cause: counters.by_cause.get(cause, 0) + 1},
        recent=(*counters.recent, entry)[-policy.recent_disruptions :],
        streak=_extend(counters.streak, record, counters.ledger.furthest_step, judgement),
    )


def _extend(streak: Streak, record: Epoch, furthest_step: int, judgement: Judgement) -> Streak:
    """One more restart. Training got further if it restores a newer step or had done a further one."""
    restored = record.restore.step
    if restored > streak.restore_step or furthest_step > streak.last_step:
        return Streak(
            restarts=1,
            restore_step=max(restored, streak.restore_step),
            last_step=max(furthest_step, streak.last_step),
            first=judgement,
        )
    return replace(streak, restarts=streak.restarts + 1)


def _keep_times(
    counters: Counters, record: Epoch, judgement: Judgement | None, limits: Mapping[str, Mapping[str, Any]]
) -> Counters:
    """Remember when disruptions with a limit happened, within its window and in at most about 64 moments.

    Where the limit itself is higher, times are rounded to 1/64 of the window.
    """
    times: dict[str, tuple[Moment, ...]] = {}
    for cause, limit in limits.items():
        window = limit["windowSeconds"]
        kept = [moment for moment in counters.times.get(cause, ()) if moment.at > record.detected_at - window]
        if judgement is not None and judgement.cause.value == cause:
            width = 1 if limit["max"] < _MOMENTS else max(1, window // _MOMENTS)
            at = int(record.detected_at) // width * width
            count = sum(moment.count for moment in kept if moment.at == at)
            kept = [*(moment for moment in kept if moment.at != at), Moment(at, count + 1)]
        if kept:
            times[cause] = tuple(kept)
    return replace(counters, times=times)


def _spent(counters: Counters, record: Epoch, judgement: Judgement, observed: Observed) -> Failure | None:
    cause = judgement.cause.value
    limit = _limits(observed).get(cause)
    spent = sum(moment.count for moment in counters.times.get(cause, ()))
    if limit is not None and spent > limit["max"]:
        return Failure(
            Reason.RESTART_BUDGET_SPENT,
            f"{cause}: {spent} failures within {limit['windowSeconds']} s, and "
            f"spec.recovery.limits allows {limit['max']}",
            judgement,
        )
    allowed = _recovery(observed).get("noProgressLimit")
    if allowed is not None and counters.streak.restarts > allowed:
        step = max(counters.streak.last_step, record.restore.step)
        return Failure(
            Reason.NO_PROGRESS,
            f"{counters.streak.restarts} failures in a row at step {step} "
            f"without a newer checkpoint or a further step, and spec.recovery.noProgressLimit is {allowed}",
            counters.streak.first,
        )
    return None


def _recovery(observed: Observed) -> Mapping[str, Any]:
    """Limits may be changed at any time, so the spec of now counts; the frozen one when that is invalid."""
    spec = observed.spec
    if spec is None and observed.revision is not None:
        spec = observed.revision.spec
    return (spec or {}).get("recovery") or {}


def _limits(observed: Observed) -> dict[str, Mapping[str, Any]]:
    return {item["cause"]: item for item in _recovery(observed).get("limits") or []}


def _shorten(judgement: Judgement, policy: Policy) -> Judgement:
    """The end of a long output is where the error is."""
    raw = judgement.message.encode()
    if len(raw) <= policy.message_bytes:
        return judgement
    return replace(judgement, message=raw[-policy.message_bytes :].decode(errors="ignore"))
