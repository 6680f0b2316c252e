"""How an agent ends: exit code and last words for each reason."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.agent_process import AgentProcess, agents, wait_gone
from tests.trainer.fake_membership import FakeMembership
from trainer.checkpoint import manifest
from trainingrun.protocol import names
from trainingrun.protocol.messages import AgentPhase, DirectiveKind


@pytest.fixture
def membership() -> Iterator[FakeMembership]:
    service = FakeMembership()
    yield service
    service.close()


def ended(agent: AgentProcess, code: int) -> str:
    """Wait for the end, which must have this exit code; the message of the last words."""
    with agents(agent):
        family = agent.family()
        assert agent.wait(60) == code, agent.log.read_text()
        termination = agent.termination()
        assert termination is not None
        assert termination.exit_code == code
        wait_gone(family)
        return f"{termination.reason}: {termination.message}"


def test_a_specification_that_can_never_work_is_bad_configuration(tmp_path: Path, membership: FakeMembership) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, fake={"steps": 0}), 64)
    assert said.startswith("BadConfiguration: spec.fake.steps: 0: not positive")
    assert not membership.seats


def test_a_file_that_is_no_specification_is_bad_configuration(tmp_path: Path, membership: FakeMembership) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, spec={"task": "pretrain"}), 64)
    assert "not a resolved one" in said


def test_a_missing_variable_is_bad_configuration(tmp_path: Path, membership: FakeMembership) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, **{names.ENV_SLOT: "three"}), 64)
    assert names.ENV_SLOT in said
    assert "'three'" in said


def test_a_checkpoint_location_of_another_run_is_bad_configuration(tmp_path: Path, membership: FakeMembership) -> None:
    manifest.claim(tmp_path / "checkpoints", "another-uid", "another-run", False)
    said = ended(AgentProcess(tmp_path, membership.url), 64)
    assert said.startswith("BadConfiguration: spec.checkpoint.location.uri")
    assert "another-run" in said


def test_data_that_cannot_be_prepared_is_bad_configuration(tmp_path: Path, membership: FakeMembership) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, fake={"badData": True}), 64)
    assert "spec.data.sources[0].uri" in said


def test_training_code_that_cannot_be_imported_is_said_with_its_traceback(
    tmp_path: Path, membership: FakeMembership
) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, imports="broken"), 1)
    assert "this training code is broken" in said


def test_a_node_says_what_it_prepares_and_is_idle_only_after_that(tmp_path: Path, membership: FakeMembership) -> None:
    """And: no checkpoint that can be used ends the node, and is never started again."""
    with agents(AgentProcess(tmp_path, membership.url, fake={"prepareSeconds": 20})) as (agent,):
        membership.wait_for(
            lambda: any(r.activity == "tokenising" for r in membership.history), 30, "activity tokenising"
        )
        membership.wait_phase(0, AgentPhase.IDLE, 60)
        assert {r.phase for r in membership.history[:-1]} == {AgentPhase.PREPARING}
        assert membership.history[-1].location_fresh
        membership.form([0])
        agent.wait_notes("stepped", 1)
        agent.order(1, "exit-66")
        assert ended(agent, 66) == "NoUsableCheckpoint: ends with 66 on request"
        assert membership.history[-1].phase is AgentPhase.FAILED


def test_the_final_node_leaves_the_result_and_the_others_wait_to_be_told(
    tmp_path: Path, membership: FakeMembership
) -> None:
    pair = [AgentProcess(tmp_path, membership.url, slot, fake={"steps": 20, "torch": True}) for slot in (0, 1)]
    with agents(*pair):
        for slot in (0, 1):
            membership.wait_phase(slot, AgentPhase.IDLE, 60)
        membership.form([0, 1])
        assert pair[0].wait(30) == 0
        assert membership.wait_phase(0, AgentPhase.DONE).phase is AgentPhase.DONE
        last = pair[0].termination()
        assert last is not None
        assert (last.reason, last.step, last.tokens, last.loss) == ("Done", 20, 2000, 0.05)
        assert (last.epoch, last.manifest, last.export) == (1, "step-9.e1", "/models/x")
        assert last.summary is not None
        assert last.summary.last_step == 20

        membership.wait_phase(1, AgentPhase.DONE)
        time.sleep(0.5)
        assert pair[1].process.poll() is None
        membership.direct(1, DirectiveKind.LEAVE, reason="Complete")
        assert ended(pair[1], 0).startswith("Done")
