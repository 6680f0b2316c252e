"""Nothing outlives an agent: whoever is killed, and whenever."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trainer.agent_process import AgentProcess, agents, children, wait_gone, wait_until
from tests.trainer.fake_membership import FakeMembership

from trainingrun.protocol.messages import AgentPhase
from trainingrun.protocol.records import Restore, RestoreSource

SEED = 20


@pytest.fixture
def membership() -> Iterator[FakeMembership]:
    service = FakeMembership()
    yield service
    service.close()


def test_no_process_outlives_an_agent_that_is_killed_at_any_instant_of_its_start(
    tmp_path: Path, membership: FakeMembership
) -> None:
    """Six agents side by side, killed while they import, prepare data, or wait."""
    chance = random.Random(SEED)
    started = [AgentProcess(tmp_path, membership.url, slot, fake={"prepareSeconds": 30}) for slot in range(6)]
    begun = time.monotonic()
    with agents(*started):
        for agent, instant in zip(started, sorted(chance.uniform(0.02, 6.0) for _ in started), strict=True):
            time.sleep(max(0.0, begun + instant - time.monotonic()))
            family = agent.family()
            agent.process.kill()
            agent.process.wait()
            wait_gone(family)
            wait_until(
                lambda agent=agent: not agent.family(), 3, f"killed after {instant:.2f} s: {agent.family()}"
            )


def test_no_process_outlives_an_agent_that_is_killed_while_ranks_start_and_run(
    tmp_path: Path, membership: FakeMembership
) -> None:
    chance = random.Random(SEED)
    started = [AgentProcess(tmp_path, membership.url, slot) for slot in range(3)]
    with agents(*started):
        for agent in started:
            membership.wait_phase(agent.slot, AgentPhase.IDLE, 60)
        for agent in started:
            nonce = membership.prepare([agent.slot])
            membership.start(membership.record([agent.slot], nonce, Restore(RestoreSource.INITIAL)))
            time.sleep(chance.choice([chance.uniform(0, 0.1), chance.uniform(0, 0.6)]))
            family = agent.family()
            agent.process.kill()
            agent.process.wait()
            wait_gone(family)
            wait_until(lambda agent=agent: not agent.family(), 3, "all of its session is gone")


def test_ranks_die_with_their_fork_server_and_leave_no_one_behind(
    tmp_path: Path, membership: FakeMembership
) -> None:
    """Ten kills of a rank or of the fork server at random instants; afterwards only what belongs there is
    there.
    """
    chance = random.Random(SEED)
    with agents(AgentProcess(tmp_path, membership.url)) as (agent,):
        membership.wait_phase(0, AgentPhase.IDLE, 60)
        for turn in range(10):
            membership.form([0])
            time.sleep(chance.uniform(0, 0.2))
            server = agent.fork_server()
            ranks = children(server)
            victim = server if turn in (3, 7) else chance.choice(ranks) if ranks else None
            if victim is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            membership.wait_phase(0, AgentPhase.FAILED, 20)
            wait_until(lambda gone=ranks: not any(Path(f"/proc/{pid}").exists() for pid in gone), 3)
        membership.prepare([0], 60)
        wait_until(lambda: not children(agent.fork_server()), 3, "no ranks")
        assert len(agent.family()) == 3  # agent, resource tracker, fork server
        family = agent.family()
        agent.process.kill()
        agent.process.wait()
        wait_gone(family)
