"""`trainingrun wait`: until a run is over, or for so long. It looks; it changes nothing.

A cluster that does not answer is waited for too: training goes on without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console

from trainingrun.api.constants import ConditionType
from trainingrun.api.errors import CliExit, Missing
from trainingrun.cli.cluster_access import NotAccepted, Place, find_run
from trainingrun.cli.cluster_state import outcome_of, progress_line, state_word, status_of, steps_text
from trainingrun.cli.cluster_story import SCHEMA_VERSION
from trainingrun.cli.cluster_times import parse_duration
from trainingrun.cli.live import LiveView
from trainingrun.cli.output import one_line
from trainingrun.cli.report import condition, reason_of
from trainingrun.cluster.kubernetes.objects import runs_path
from trainingrun.ports import Unavailable

LOOK_SECONDS = 2.0


class End(StrEnum):
    COMPLETE = "Complete"
    FAILED = "Failed"
    EITHER = "either"


@dataclass(frozen=True)
class Waited:
    """How the waiting ended. `outcome` is "" when the time was over first."""

    run: Mapping[str, Any]
    outcome: str
    code: CliExit

    def sentence(self) -> str:
        status = status_of(self.run)
        name = self.run["metadata"]["name"]
        if not self.outcome:
            return f"{name}: not over yet: {state_word(self.run)}, step {steps_text(status)}"
        why = one_line(reason_of(status, self.outcome)) if self.outcome == End.FAILED else ""
        return f"{name}: {self.outcome}, step {steps_text(status)}{f'; {why}' if why else ''}"

    def to_json(self) -> dict[str, Any]:
        status, meta = status_of(self.run), self.run["metadata"]
        return {
            "schemaVersion": SCHEMA_VERSION,
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
            "outcome": self.outcome or None,
            "state": state_word(self.run),
            "timedOut": self.code is CliExit.TIMEOUT,
            "progress": status.get("progress"),
            "failure": status.get("failure"),
        }


def wait(place: Place, name: str, end: End, timeout_seconds: float | None, console: Console) -> Waited:
    """`console`: standard error; the progress is drawn on it when it is a terminal. Raises Missing."""
    run: Mapping[str, Any] = find_run(place, name)
    until = None if timeout_seconds is None else place.now() + timeout_seconds
    view = LiveView(console) if console.is_terminal else None
    told = ""
    try:
        while True:
            if outcome := outcome_of(status_of(run)):
                is_met = end in (End.EITHER, outcome)
                return Waited(run, outcome, CliExit.OK if is_met else CliExit.RUN_FAILED)
            now = place.now()
            if until is not None and now >= until:
                return Waited(run, "", CliExit.TIMEOUT)
            if view is not None:
                view.line(progress_line(run, now), now)
            trouble = _stalled(run)
            if trouble and trouble != told:
                console.print(f"{name}: needs a person: {trouble}", markup=False, soft_wrap=True)
            told = trouble
            place.sleep(LOOK_SECONDS if until is None else min(LOOK_SECONDS, until - now))
            try:
                run = _again(place, run)
            except Unavailable as error:
                if view is not None:
                    view.line(f"the cluster does not answer; trying again: {one_line(str(error), 120)}", now)
    finally:
        if view is not None:
            view.close()


def checked_timeout(text: str | None) -> float | None:
    """Seconds. Raises NotAccepted."""
    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds is None:
        raise NotAccepted(f"--timeout {text!r}: is no duration\n  hint: such as 90s, 10m, 1h30m or 2d")
    return seconds


def _stalled(run: Mapping[str, Any]) -> str:
    status = status_of(run)
    stalled = condition(status, ConditionType.STALLED)
    return one_line(reason_of(status, ConditionType.STALLED)) if stalled.get("status") == "True" else ""


def _again(place: Place, run: Mapping[str, Any]) -> Mapping[str, Any]:
    """The run as it is now. Raises Missing when it is gone, or another one has its name."""
    meta = run["metadata"]
    now = place.api.get(runs_path(meta["namespace"], meta["name"]))
    if now is None or now["metadata"]["uid"] != meta["uid"]:
        what = "was deleted" if now is None else "was deleted, and another one of its name was made"
        raise Missing(
            f"run {meta['name']}: {what} while it was waited for\n  hint: its checkpoints are where they were"
        )
    return now
