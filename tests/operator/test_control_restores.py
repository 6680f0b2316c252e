"""How the controller tells of epochs whose restore failed: what is damaged, or that nothing is."""

from __future__ import annotations

import pytest
from tests.operator.control_builders import START, a_run, told, with_status
from tests.operator.test_control_decide import training_view

from trainingrun.control.decide import decide
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.records import RankExit, Trigger

OLD, NEW = "memory:step-00000010.e0001", "memory:step-00000020.e0001"
NOT_FETCHED = (RankExit(1, 0, ExitCode.NOT_FETCHED, "pieces cannot be fetched: timed out"),)
DAMAGED = (RankExit(1, 0, ExitCode.CHECKPOINT_DAMAGED, "its checksum does not match"),)


@pytest.mark.parametrize(
    ("exits", "damaged", "line"),
    [
        (
            NOT_FETCHED,
            (OLD,),
            "node-1 could not fetch the state; nothing is damaged (Infrastructure): 2 nodes, ",
        ),
        (DAMAGED, (OLD, NEW), f"checkpoint damaged: {NEW} (Infrastructure): 2 nodes, "),
    ],
)
def test_a_restore_that_failed_is_told_with_what_is_damaged_now(exits, damaged, line):
    run = a_run().pod(0).pod(1).epoch(1, damaged=(OLD,))
    run = with_status(run, decide(run.observed(), START + 101))
    run.epoch(
        2,
        trigger=Trigger.RESTORE_FAILED,
        exits=exits,
        damaged=damaged,
        last_step=20,
        restore_step=20,
        at=START + 200,
    )
    run.seen_by_membership(training_view(2, first_step_at=START + 201))
    [found] = told(decide(run.observed(), START + 202))
    assert found.startswith(line)
