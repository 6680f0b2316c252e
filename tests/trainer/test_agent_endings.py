"""How an agent ends: exit code and last words for each reason."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.agent_process import AgentProcess, agents, wait_gone, wait_until
from tests.trainer.fake_membership import FakeMembership

from trainer.agent.endings import leaving
from trainer.agent.main import process_exit_code
from trainer.checkpoint import manifest
from trainer.job import Mailbox, Result
from trainingrun.protocol import names
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import AgentPhase, Directive, DirectiveKind


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


def test_a_specification_that_can_never_work_is_bad_configuration(
    tmp_path: Path, membership: FakeMembership
) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, fake={"steps": 0}), 64)
    assert said.startswith("BadConfiguration: spec.fake.steps: 0: not positive")
    assert not membership.seats


def test_a_file_that_is_no_specification_is_bad_configuration(
    tmp_path: Path, membership: FakeMembership
) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, spec={"task": "pretrain"}), 64)
    assert "not a resolved one" in said


@pytest.mark.parametrize(
    ("options", "true_code", "exit_code"),
    [({"fake": {"steps": 0}}, 64, 0), ({"imports": "broken"}, 1, 1)],
    ids=["never restarted", "restarted"],
)
def test_under_a_kubelet_an_end_that_must_not_be_restarted_is_a_success_with_the_true_code_in_its_last_words(
    tmp_path: Path, membership: FakeMembership, options: dict[str, Any], true_code: int, exit_code: int
) -> None:
    with agents(
        AgentProcess(tmp_path, membership.url, **options, **{names.ENV_RESTART_POLICY: "OnFailure"})
    ) as (agent,):
        assert agent.wait(60) == exit_code
        termination = agent.termination()
        assert termination is not None
        assert termination.exit_code == true_code


def test_only_endings_that_must_not_be_restarted_look_like_success() -> None:
    codes = [*ExitCode, 137, 139]
    same = [int(code) for code in codes if process_exit_code(code, "OnFailure") == code]
    assert same == [0, 1, 65, 67, 137, 139]
    assert all(process_exit_code(code, policy) == code for code in codes for policy in ("", "Never"))


def test_a_missing_variable_is_bad_configuration(tmp_path: Path, membership: FakeMembership) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, **{names.ENV_SLOT: "three"}), 64)
    assert names.ENV_SLOT in said
    assert "'three'" in said


def test_a_checkpoint_location_of_another_run_has_a_reason_of_its_own(
    tmp_path: Path, membership: FakeMembership
) -> None:
    manifest.claim(tmp_path / "checkpoints", "another-uid", "another-run", False)
    said = ended(AgentProcess(tmp_path, membership.url), 64)
    assert said.startswith("LocationInUse: spec.checkpoint.location.uri")
    assert "another-run" in said


def test_data_that_cannot_be_prepared_is_bad_configuration(
    tmp_path: Path, membership: FakeMembership
) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, fake={"badData": True}), 64)
    assert "spec.data.sources[0].uri" in said


def test_training_code_that_cannot_be_imported_is_said_with_its_traceback(
    tmp_path: Path, membership: FakeMembership
) -> None:
    said = ended(AgentProcess(tmp_path, membership.url, imports="broken"), 1)
    assert "this training code is broken" in said


def test_a_node_says_what_it_prepares_and_leaves_within_two_seconds_of_sigterm(
    tmp_path: Path, membership: FakeMembership
) -> None:
    fake = {"prepareSeconds": 6, "snapshots": True}
    with agents(AgentProcess(tmp_path, membership.url, fake=fake)) as (agent,):
        membership.wait_for(lambda: membership.heard("tokenising"), 30, "activity tokenising")
        membership.wait_phase(0, AgentPhase.IDLE, 60)
        assert {r.phase for r in membership.history[:-1]} == {AgentPhase.PREPARING}
        assert membership.history[-1].location_fresh
        membership.form([0])
        wait_until(lambda: list((agent.folder / "snapshots").rglob("*.snap")), 5)
        started = time.monotonic()
        agent.process.send_signal(signal.SIGTERM)
        assert ended(agent, 75) == "Left: asked to stop by SIGTERM"
        assert time.monotonic() - started < 2.0
        assert list((agent.folder / "snapshots").rglob("*.snap"))
        last = membership.history[-1]
        assert (last.phase, last.activity, last.leaving) == (AgentPhase.IDLE, "leaving", True)


def test_a_member_that_is_told_that_the_run_is_complete_ends_well(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    mailbox.post_result(Result("Done", 300))
    complete = leaving(Directive(1, DirectiveKind.LEAVE, reason="Complete"), 4, mailbox).termination
    assert (complete.exit_code, complete.reason, complete.epoch, complete.step) == (0, "Done", 4, 300)
    spare = leaving(Directive(1, DirectiveKind.LEAVE, epoch=7, reason="Complete"), 0, None).termination
    assert (spare.reason, spare.epoch, spare.step) == ("Done", 7, 0)  # it had no part in the epoch that ended
    shrunk = leaving(Directive(1, DirectiveKind.LEAVE, reason="Shrunk"), 4, mailbox).termination
    assert (shrunk.exit_code, shrunk.reason) == (75, "Left")
