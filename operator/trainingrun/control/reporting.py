"""The status of a run: everything people and tools read, made from one observation and the counters.

Status stays small however large the run is: it holds sums, the newest few disruptions, and no lists of
nodes. Pure; called by `decide`, which writes the answer only when `worth_writing` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from trainingrun.api.conditions import timestamp
from trainingrun.api.constants import EpochCause
from trainingrun.api.status import read_status, status_json
from trainingrun.control.conditions import conditions, freshness
from trainingrun.control.counters import Counters, write_accounting, write_disruptions, write_judgement
from trainingrun.control.failures import is_disruption, judge
from trainingrun.control.folding import Failure
from trainingrun.control.ledger import Ledger
from trainingrun.control.observed import Observed
from trainingrun.control.planned import plan_block
from trainingrun.control.policy import Policy
from trainingrun.control.remembered import ends_to_keep, member_pods, stepping_to_keep
from trainingrun.control.resizing import resizes
from trainingrun.control.seats import wanted_size
from trainingrun.control.state import State, joining_nodes, training_nodes
from trainingrun.ports import PodPhase
from trainingrun.protocol.messages import Progress, Termination
from trainingrun.protocol.records import Epoch, Revision, Trigger

_CHECKPOINT = re.compile(r"step-(?P<step>\d+)\.e(?P<epoch>\d+)$")
_NEWS = ("progress", "goodput")  # blocks that change all the time while a run trains


@dataclass(frozen=True)
class Report:
    """What `decide` found out, to be put into words."""

    observed: Observed
    counters: Counters
    ledger: Ledger  # the running or last epoch included
    state: State
    failure: Failure | None
    final: Termination | None  # of a run that completed

    @property
    def newest_accounted(self) -> Epoch | None:
        records = (self.observed.last, *self.observed.fresh)
        found = [one for one in records if one is not None and one.epoch == self.counters.accounted_epoch]
        return found[0] if found else None

    @property
    def over(self) -> bool:
        return self.final is not None or self.failure is not None


def build_status(report: Report, now: float, policy: Policy) -> dict[str, Any]:
    """The whole status in API form. Blocks that have nothing to say yet are left out."""
    observed = report.observed
    status: dict[str, Any] = {"observedGeneration": observed.run.generation}
    if observed.revision is not None:
        status["resolved"] = {
            "revision": observed.revision.name,
            "planner": observed.revision.planner_version,
        }
        status["plan"] = plan_block(observed, observed.revision)
        status["membership"] = _membership(report, observed.revision)
    elif observed.lost_revision:
        # What it began with is known from here alone once its records are gone.
        status["resolved"] = observed.run.status.get("resolved") or {
            "revision": observed.lost_revision,
            "planner": "unknown",
        }
    progress = _progress(report, now)
    if progress is not None:
        status["progress"] = progress
    checkpoint = _checkpoint(report)
    if checkpoint:
        status["checkpoint"] = checkpoint
    status["disruptions"] = write_disruptions(report.counters)
    status["goodput"] = _goodput(report.ledger)
    status["accounting"] = write_accounting(report.counters)
    ended = ends_to_keep(observed, report.newest_accounted)
    if ended and not report.over:
        status["accounting"]["ended"] = ended
    stepping = stepping_to_keep(observed, report.final)
    if stepping is not None:
        status["accounting"]["stepping"] = stepping
    durable = checkpoint.get("durable")
    if durable is not None:
        status["accounting"]["durableSince"] = _durable_since(observed.run.status, durable, now)
    if report.final is not None and report.final.export:
        status["output"] = {"export": report.final.export}
    if report.failure is not None and report.failure.first is not None:
        status["failure"] = write_judgement(report.failure.first)
    since = status["accounting"].get("durableSince", now)
    fresh = freshness(
        durable,
        _durable_interval(observed),
        now - since,
        policy.checkpoint_age_factor,
        "" if report.final is not None else _save_problem(observed),
    )
    status["conditions"] = conditions(
        observed, report.state, report.failure, report.final is not None, fresh, now
    )
    return status


def worth_writing(old: Mapping[str, Any], new: Mapping[str, Any], now: float, policy: Policy) -> bool:
    """Anything but progress is written at once; progress in intervals, so that a watch is not flooded."""
    stored = _as_stored(old)
    new = _as_stored(new)
    if stored == new:
        return False
    if _steady(stored) != _steady(new):
        return True
    written = (old.get("progress") or {}).get("updateTime")
    return (
        written is not None
        and now - datetime.fromisoformat(written).timestamp() >= policy.progress_write_seconds
    )


def _as_stored(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the defaults that an API server adds: what differs in them only is not written again and again."""
    try:
        return status_json(read_status(status))
    except ValidationError:
        return status


def _steady(status: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in status.items() if key not in _NEWS}
    kept["hasProgress"] = bool(status.get("progress"))
    if "plan" in kept:
        kept["plan"] = {key: value for key, value in kept["plan"].items() if key != "stepMillis"}
    if "accounting" in kept:
        kept["accounting"] = {key: value for key, value in kept["accounting"].items() if key != "stepping"}
    # The newest step in memory comes and goes while snapshots are taken, and with it the block until there is more.
    kept["checkpoint"] = {
        key: value for key, value in (kept.get("checkpoint") or {}).items() if key != "memoryStep"
    }
    return kept


def _membership(report: Report, revision: Revision) -> dict[str, Any]:
    observed, epoch = report.observed, report.observed.epoch
    training = 0 if report.over else training_nodes(observed)
    lives = [seat.live for seat in observed.seats.values() if seat.live is not None]
    return {
        "epoch": 0 if epoch is None else epoch.epoch,
        "cause": EpochCause.STARTED.value if epoch is None else _cause(report, epoch),
        "nodes": {
            "training": training,
            "joining": 0 if report.over else joining_nodes(observed),
            "pending": sum(pod.phase is PodPhase.PENDING for pod in lives),
            "terminating": sum(len(seat.terminating) for seat in observed.seats.values()),
        },
        "summary": f"{training}/{wanted_size(observed, revision)}",
        "since": timestamp(observed.run.created_at if epoch is None else epoch.created_at),
    }


def _cause(report: Report, epoch: Epoch) -> str:
    """As it was judged; while that waits for evidence, as it would be judged now."""
    judged = [item.cause for item in report.counters.recent if item.epoch == epoch.epoch]
    if judged:
        return judged[0]
    observed = report.observed
    if epoch.epoch in resizes(observed):
        return EpochCause.SHRINKING.value
    if is_disruption(epoch) and epoch.epoch > report.counters.accounted_epoch:
        chain = [observed.before, observed.last, *observed.fresh]
        before = next((one for one in chain if one is not None and one.epoch == epoch.epoch - 1), None)
        return judge(epoch, before, member_pods(observed), observed.nodes).cause.value
    if epoch.trigger is Trigger.RESTORE_FAILED:
        return EpochCause.RESTORE_FAILED.value
    return (EpochCause.STARTED if epoch.trigger is Trigger.STARTED else EpochCause.GROWING).value


def _progress(report: Report, now: float) -> dict[str, Any] | None:
    observed = report.observed
    old: dict[str, Any] | None = observed.run.status.get("progress")
    news: Progress | None = None if observed.view is None else observed.view.progress
    if report.final is not None:
        end = report.final
        return {
            "step": end.step,
            "totalSteps": end.step,
            "tokens": end.tokens,
            "loss": _loss(end.loss),
            "tokensPerSecond": (old or {}).get("tokensPerSecond", 0),
            "updateTime": timestamp(now),
        }
    if news is None:
        return old
    block = {
        "step": news.step,
        "totalSteps": news.total_steps,
        "tokens": news.tokens,
        "loss": _loss(news.loss),
        "tokensPerSecond": round(news.tokens_per_second),
        "updateTime": timestamp(now),
    }
    if news.summary.step_seconds > 0 and report.state.ready:
        left = max(0, news.total_steps - news.step) * news.summary.step_seconds
        block["estimatedCompletionTime"] = timestamp(news.summary.last_step_at + left)
    return block


def _loss(value: float) -> str:
    """As text: floats differ between the languages that read them."""
    return f"{value:.6g}"


def _checkpoint(report: Report) -> dict[str, Any]:
    """Memory: the newest step that could be restored from memory. Durable: the newest committed manifest."""
    view, old = report.observed.view, report.observed.run.status.get("checkpoint") or {}
    block: dict[str, Any] = {}
    if view is None:
        block |= {key: old[key] for key in ("memoryStep",) if key in old and not report.over}
    elif view.memory_step is not None and not report.over:
        block["memoryStep"] = view.memory_step

    name = ""
    if report.final is not None:
        name = report.final.manifest
    elif view is not None and view.progress is not None:
        name = view.progress.summary.durable
    match = _CHECKPOINT.search(name)
    if match is not None:
        step, epoch = int(match["step"]), int(match["epoch"])
        block["durable"] = {"step": step, "epoch": epoch, "manifest": match[0]}
    elif "durable" in old:
        block["durable"] = old["durable"]
    return block


def _durable_since(old: Mapping[str, Any], durable: Mapping[str, Any], now: float) -> int:
    """When this durable checkpoint was first seen, in seconds since 1970."""
    known = (old.get("checkpoint") or {}).get("durable") or {}
    since = (old.get("accounting") or {}).get("durableSince")
    return since if since is not None and known.get("manifest") == durable["manifest"] else int(now)


def _durable_interval(observed: Observed) -> int | None:
    spec = observed.revision.spec if observed.revision is not None else observed.spec or {}
    durable = (spec.get("checkpoint") or {}).get("durable") or {}
    interval: int | None = durable.get("intervalSeconds")
    return interval


def _save_problem(observed: Observed) -> str:
    """What the ranks say about their last try to save, "" when it went well."""
    progress = observed.view.progress if observed.view is not None else None
    return progress.save_problem if progress is not None else ""


def _goodput(ledger: Ledger) -> dict[str, Any]:
    return {
        "permille": ledger.permille,
        "wallSeconds": round(ledger.wall / 1000),
        "productiveSeconds": round(ledger.productive / 1000),
        "lost": [
            {"part": str(part), "seconds": round(amount / 1000)}
            for part, amount in sorted(ledger.lost.items())
            if amount > 0
        ],
    }
