"""The conditions of a run. Ready, Reconciling and Stalled follow kstatus: at most one of the last two is
True.

All of them are set on the first visit and at every later one, so that none is ever missing or left over
from an earlier generation. Pure; called by `reporting`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.api.conditions import Status, set_condition
from trainingrun.api.constants import ConditionType, Reason
from trainingrun.control.claims import claim_problem
from trainingrun.control.folding import Failure
from trainingrun.control.observed import Observed, PlanFailure
from trainingrun.control.state import State
from trainingrun.protocol.records import Revision

_NAMED = 8  # sizes that are of no use, before they are only counted


@dataclass(frozen=True)
class Wish:
    status: Status
    reason: Reason
    message: str = ""


def conditions(
    observed: Observed, state: State, failure: Failure | None, completed: bool, fresh: Wish, now: float
) -> list[dict[str, Any]]:
    """The list for status, with the transition times of the old one."""
    wanted: Mapping[ConditionType, Wish] = {
        ConditionType.READY: Wish(_bool(state.ready), state.reason, state.message),
        ConditionType.RECONCILING: _reconciling(state, completed),
        ConditionType.STALLED: _stalled(state),
        ConditionType.PLANNED: _planned(observed),
        ConditionType.CHECKPOINT_FRESH: fresh,
        ConditionType.COMPLETE: Wish(
            _bool(completed), Reason.COMPLETED if completed else Reason.NOT_FINISHED
        ),
        ConditionType.FAILED: (
            Wish("False", Reason.NOT_FAILED)
            if failure is None
            else Wish("True", failure.reason, failure.message)
        ),
    }
    result: list[dict[str, Any]] = list(observed.run.status.get("conditions") or [])
    generation = observed.run.generation
    for kind, wish in wanted.items():
        result = set_condition(result, kind, wish.status, wish.reason, wish.message, generation, now)
    return result


def freshness(
    durable: Mapping[str, Any] | None, interval: int | None, age: float, factor: float, problem: str
) -> Wish:
    """CheckpointFresh: the newest durable checkpoint is no older (`age`, seconds) than `factor` intervals, and nothing
    (`problem`) was wrong with the last try to save one.
    """
    if problem:
        newest = f"the newest is step {durable['step']}" if durable else "there is none yet"
        return Wish(
            "False", Reason.SAVE_FAILED, f"{problem}; training goes on, and it is tried again; {newest}"
        )
    if not durable:
        return Wish("Unknown", Reason.NO_CHECKPOINT_YET, "no durable checkpoint was written yet")
    step = durable["step"]
    if interval and age > factor * interval:
        text = f"step {step} is older than {factor:g} intervals of {interval} s"
        return Wish("False", Reason.CHECKPOINT_STALE, text)
    return Wish("True", Reason.CHECKPOINT_SAVED, f"step {step}")


def _reconciling(state: State, completed: bool) -> Wish:
    if state.busy is not None:
        return Wish("True", state.busy, state.message)
    return Wish("False", Reason.COMPLETED if completed else state.stuck or Reason.STEADY)


def _stalled(state: State) -> Wish:
    if state.stuck is None:
        return Wish("False", Reason.NOT_STALLED)
    return Wish("True", state.stuck, state.message)


def _planned(observed: Observed) -> Wish:
    if observed.revision is not None:
        return Wish("True", Reason.PLANNED, _path_text(observed.revision))
    if observed.lost_revision:
        return Wish("Unknown", Reason.REVISION_MISSING)
    if observed.spec is None:
        return Wish("False", Reason.INVALID_SPEC, observed.spec_error)
    problem = claim_problem(observed)
    if problem is not None:
        return Wish("False", problem.reason, problem.message)
    if isinstance(observed.plan, PlanFailure):
        return Wish("False", Reason.PLAN_INFEASIBLE, observed.plan.message)
    return Wish("Unknown", Reason.PLANNING)


def _path_text(revision: Revision) -> str:
    """The sizes of the frozen path, those that are of no use, and why the model is cut as it is."""
    rungs = revision.rungs
    text = f"{rungs[0].nodes} to {rungs[-1].nodes} nodes"
    useless = [str(rung.nodes) for rung in rungs if not rung.useful]
    if useless:
        more = f" and {len(useless) - _NAMED} more" if len(useless) > _NAMED else ""
        text += f" (of no use: {', '.join(useless[:_NAMED])}{more})"
    reason = str(revision.plan.get("reason", ""))
    return f"{text}; {reason}" if reason else text


def _bool(holds: bool) -> Status:
    return "True" if holds else "False"
