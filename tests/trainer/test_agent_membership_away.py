"""What an agent does while membership is away, and when membership says that it is over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.agent_process import AgentProcess, agents, wait_gone
from tests.trainer.fake_membership import FakeMembership

from trainingrun.protocol.messages import AgentPhase, DirectiveKind


@pytest.fixture
def membership() -> Iterator[FakeMembership]:
    service = FakeMembership()
    yield service
    service.close()


def test_training_goes_on_without_membership_and_a_dead_rank_waits_for_it(
    tmp_path: Path, membership: FakeMembership
) -> None:
    with agents(AgentProcess(tmp_path, membership.url, fake={"torch": True})) as (agent,):
        membership.wait_phase(0, AgentPhase.IDLE, 60)
        membership.form([0])
        step = membership.wait_step(0, 1, 1).progress.step  # type: ignore[union-attr]

        with membership.away():
            time.sleep(3)
        report = membership.wait_step(0, step + 50, 1)
        assert report.phase is AgentPhase.RUNNING
        assert membership.seats[0].joins == 1
        assert len(agent.notes("entered", 1)) == 2

        with membership.away(forget=True):
            time.sleep(1)
        membership.wait_for(lambda: 0 in membership.seats, 10, "joined again")
        assert membership.seats[0].join.running_epoch == 1
        assert membership.wait_step(0, step + 60, 1).phase is AgentPhase.RUNNING

        with membership.away():
            os.kill(agent.notes("entered", 1)[0]["pid"], signal.SIGKILL)
            time.sleep(2)
            assert len(agent.notes("entered", 1)) == 2  # no world of its own
        back = time.time()
        report = membership.wait_phase(0, AgentPhase.FAILED, 5)
        assert next(e.exit_code for e in report.exits) == 137
        membership.form([0])
        stepped = agent.wait_notes("stepped", 2)
        print(f"first step {max(n['at'] for n in stepped) - back:.2f} s after membership was back")

        # the run is gone: ranks and agent end
        family = agent.family()
        membership.refuse = (404, "RunGone")
        assert agent.wait(5) == 69
        termination = agent.termination()
        assert termination is not None
        assert termination.reason == "MembershipLost"
        assert "RunGone" in termination.message
        wait_gone(family)


@pytest.mark.parametrize(
    ("status", "code", "exit_code", "reason"),
    [
        (409, "StaleIncarnation", 69, "MembershipLost"),
        (426, "ProtocolMismatch", 64, "BadConfiguration"),
    ],
)
def test_a_refused_join_ends_the_agent(
    tmp_path: Path, membership: FakeMembership, status: int, code: str, exit_code: int, reason: str
) -> None:
    membership.refuse = (status, code)
    with agents(AgentProcess(tmp_path, membership.url)) as (agent,):
        family = agent.family()
        assert agent.wait(20) == exit_code
        termination = agent.termination()
        assert termination is not None
        assert termination.reason == reason
        wait_gone(family)


def test_an_answer_that_is_not_membership_s_is_not_believed(
    tmp_path: Path, membership: FakeMembership
) -> None:
    membership.refuse = (404, "NotFound")  # as a proxy in between might say
    with agents(AgentProcess(tmp_path, membership.url)) as (agent,):
        time.sleep(2)
        assert agent.process.poll() is None
        membership.refuse = None
        membership.wait_for(lambda: 0 in membership.seats, 10, "joined")
        membership.direct(0, DirectiveKind.LEAVE, reason="not needed")  # before it is ready
        assert agent.wait(10) == 75
        termination = agent.termination()
        assert termination is not None
        assert "not needed" in termination.message
