"""What the status of a run says in a few words: its state, whether it is over, and what is not as it should be.

Pure; read by every verb that shows a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainingrun.api.conditions import is_true
from trainingrun.api.constants import ConditionType, Reason
from trainingrun.cli.live import training_line
from trainingrun.cli.output import one_line
from trainingrun.cli.report import condition
from trainingrun.cluster.kubernetes.objects import seconds

# What each condition is while all is well; the others are judged by nobody.
_AS_IT_SHOULD_BE = {
    ConditionType.READY: "True",
    ConditionType.RECONCILING: "False",
    ConditionType.STALLED: "False",
    ConditionType.PLANNED: "True",
    ConditionType.CHECKPOINT_FRESH: "True",
    ConditionType.FAILED: "False",
}


def status_of(run: Mapping[str, Any]) -> Mapping[str, Any]:
    return run.get("status") or {}


def outcome_of(status: Mapping[str, Any]) -> str:
    """Complete | Failed; "" while the run goes on."""
    conditions = status.get("conditions") or []
    for kind in (ConditionType.COMPLETE, ConditionType.FAILED):
        if is_true(conditions, kind):
            return kind.value
    return ""


def state_word(run: Mapping[str, Any]) -> str:
    """The reason of Ready, as `kubectl get` shows it; Deleting for a run that goes away."""
    if run["metadata"].get("deletionTimestamp"):
        return "Deleting"
    return str(condition(status_of(run), ConditionType.READY).get("reason") or Reason.PENDING.value)


def worries(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Conditions that are not as they should be and that say more than the state itself does."""
    status = status_of(run)
    ready = condition(status, ConditionType.READY)
    said = {(ready.get("reason"), ready.get("message", ""))}
    found = []
    for one in status.get("conditions") or []:
        wanted = _AS_IT_SHOULD_BE.get(one["type"])
        is_well = wanted is None or one["status"] == wanted
        is_early = one.get("reason") == Reason.NO_CHECKPOINT_YET
        what = (one.get("reason"), one.get("message", ""))
        if one["type"] == ConditionType.READY or is_well or is_early or what in said:
            continue
        said.add(what)
        found.append(one)
    return found


def unseen_change(run: Mapping[str, Any]) -> str:
    """A sentence when the controller has not acted on the newest spec; "" when it has."""
    generation = run["metadata"].get("generation", 0)
    seen = status_of(run).get("observedGeneration", 0)
    if seen == 0:
        return (
            "the controller has not looked at this run yet: is it running, and does it watch this namespace?"
        )
    if seen < generation:
        return f"the controller has not acted on the newest spec yet (generation {generation}, it saw {seen})"
    return ""


def steps_text(status: Mapping[str, Any]) -> str:
    """`140/300`, or `-`."""
    progress = status.get("progress")
    return f"{progress['step']}/{progress['totalSteps']}" if progress else "-"


def done_at(status: Mapping[str, Any]) -> float | None:
    """When it will be complete, in seconds since 1970; None when that is not known, or it does not train."""
    done = (status.get("progress") or {}).get("estimatedCompletionTime")
    trains = condition(status, ConditionType.READY).get("status") == "True" and not outcome_of(status)
    return seconds(done) if done and trains else None


def progress_line(run: Mapping[str, Any], now: float) -> str:
    """One line as a local run shows it: `step 120/300  loss 3.412 …`, or the state while nothing trains."""
    status = status_of(run)
    progress, membership = status.get("progress"), status.get("membership") or {}
    ready = condition(status, ConditionType.READY)
    said = one_line(": ".join(part for part in (state_word(run), ready.get("message", "")) if part))
    if not progress:
        return said
    done = done_at(status)
    line = training_line(
        steps_text(status),
        float(progress["loss"]),
        progress["tokensPerSecond"],
        membership.get("summary", "-"),
        membership.get("epoch", 0),
        None if done is None else max(0.0, done - now),
    )
    return line if ready.get("status") == "True" else f"{line}  ({said})"
