"""When a local run ends although it is neither complete nor failed: only a person can help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainingrun.api.constants import Reason
from trainingrun.api.errors import CliExit
from trainingrun.cli.local_session import stalled_for_good
from trainingrun.ports import RunObject
from trainingrun.protocol.messages import RunView

VIEW = RunView("uid", 1, (), None, False, "", "", None, False)


def stalled(reason: Reason, generation: int = 1) -> RunObject:
    condition = {"type": "Stalled", "status": "True", "reason": reason, "observedGeneration": generation}
    return RunObject("demo", "uid", 1, "1.1", {}, {"conditions": [condition]}, False, 0.0)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Reason.INVALID_SPEC, CliExit.BAD_INPUT),
        (Reason.PLAN_INFEASIBLE, CliExit.NOTHING_FITS),
        (Reason.MEMBERSHIP_UNREACHABLE, None),
    ],
)
def test_a_run_that_stands_still_ends_if_waiting_cannot_help(reason: Reason, code: CliExit | None) -> None:
    assert stalled_for_good(stalled(reason), VIEW) == code
    assert stalled_for_good(stalled(reason), None) == code


def test_what_was_said_of_another_manifest_does_not_count() -> None:
    assert stalled_for_good(stalled(Reason.PLAN_INFEASIBLE, generation=0), VIEW) is None


def test_a_continued_run_is_not_ended_by_what_the_session_before_found_missing() -> None:
    run = stalled(Reason.NO_USABLE_CHECKPOINT)
    assert stalled_for_good(run, None) is None
    assert stalled_for_good(run, VIEW) is None
    assert stalled_for_good(run, replace(VIEW, blocked="NoUsableCheckpoint: …")) == CliExit.RUN_FAILED


def test_a_run_that_goes_on_does_not_end() -> None:
    run = stalled(Reason.PLAN_INFEASIBLE)
    condition = {**run.status["conditions"][0], "status": "False"}
    assert stalled_for_good(replace(run, status={"conditions": [condition]}), VIEW) is None
    assert stalled_for_good(replace(run, status={}), VIEW) is None
