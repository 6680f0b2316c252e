"""Two agents with two gloo ranks each, and a membership that the test plays: the life of epochs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trainer.agent_process import AgentProcess, agents, children, wait_gone, wait_until
from tests.trainer.fake_membership import FakeMembership
from tests.trainer.snapshot_peers import PIECES, WANTED, a_scripted_peer, hold

from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import AgentPhase, DirectiveKind
from trainingrun.protocol.records import Restore, RestoreSource


class World:
    """Membership and two agents, used by every test of this module one after the other."""

    def __init__(self, membership: FakeMembership, pair: tuple[AgentProcess, ...]) -> None:
        self.membership = membership
        self.agents = pair

    def run(self, *slots: int) -> int:
        """Start an epoch and wait until it steps; its number."""
        record = self.membership.form(slots or (0, 1))
        for member in record.members:
            self.agents[member.slot].wait_notes("stepped", record.epoch)
        return record.epoch

    def rank_pid(self, slot: int, epoch: int) -> int:
        return int(self.agents[slot].wait_notes("entered", epoch)[-1]["pid"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("epochs")
    membership = FakeMembership()
    fake = {"torch": True, "snapshots": True}
    pair = tuple(AgentProcess(folder, membership.url, slot, fake=fake) for slot in (0, 1))
    with agents(*pair):
        for slot in (0, 1):
            membership.wait_phase(slot, AgentPhase.IDLE, 60)
        yield World(membership, pair)
    membership.close()


def test_an_epoch_runs_on_both_nodes_and_only_rank_0s_node_reports_progress(world: World) -> None:
    epoch = world.run()
    report = world.membership.wait_step(0, 3, epoch)
    assert (report.phase, report.epoch) == (AgentPhase.RUNNING, epoch)
    other = world.membership.wait_phase(1, AgentPhase.RUNNING)
    assert other.progress is None
    assert sorted(n["rank"] for agent in world.agents for n in agent.notes("entered", epoch)) == [0, 1, 2, 3]


def test_a_killed_rank_is_reported_at_once_and_forked_again_within_a_second(world: World) -> None:
    parts = []
    for _ in range(3):
        epoch = world.run()
        killed_at = time.time()
        os.kill(world.rank_pid(1, epoch), signal.SIGKILL)
        report = world.membership.wait_phase(1, AgentPhase.FAILED)
        assert report.exits[0].exit_code == 137
        assert "killed by SIGKILL" in report.exits[0].message
        failed_at = world.membership.seats[1].phase_since["Failed"]
        again = world.run()
        times = world.membership.times
        notes = [n for agent in world.agents for n in agent.notes("entered", again)]
        stepped = max(n["at"] for agent in world.agents for n in agent.notes("stepped", again))
        entered = max(n["at"] for n in notes)
        parts.append(
            {
                "detect and report": failed_at - killed_at,
                "prepare": times["prepared"] - times["prepare"],
                "record to main": entered - times["record"],
                "main to step": stepped - entered,
                "whole": stepped - killed_at,
            }
        )
    for part in parts:
        print("seconds from kill to first step:", {name: round(seconds, 3) for name, seconds in part.items()})
    assert min(part["whole"] for part in parts) < 1.0


def test_a_node_leaves_and_comes_back(world: World) -> None:
    membership = world.membership
    world.run()
    nonce = membership.prepare((0, 1))
    alone = membership.record((0,), nonce, Restore(RestoreSource.INITIAL))
    membership.start(alone)
    world.agents[0].wait_notes("stepped", alone.epoch)
    assert membership.wait_phase(1, AgentPhase.IDLE).epoch < alone.epoch
    both = world.run(1, 0)  # and the order of members is the order of ranks
    assert [n["rank"] for n in world.agents[1].notes("entered", both)] in ([0, 1], [1, 0])
    assert world.membership.wait_step(1, 2, both).progress is not None
    assert world.membership.wait_phase(0, AgentPhase.RUNNING).progress is None


def test_prepare_kills_running_ranks_and_reports_what_is_held(world: World) -> None:
    epoch = world.run()
    pids = [n["pid"] for agent in world.agents for n in agent.notes("entered", epoch)]
    started = time.time()
    nonce = world.membership.prepare((0, 1))
    assert time.time() - started < 2.0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 2)
    for slot in (0, 1):
        report = world.membership.wait_phase(slot, AgentPhase.IDLE)
        assert (report.prepared, report.epoch, report.exits) == (nonce, epoch, ())
        newest = report.snapshots[-1]
        assert newest.epoch == epoch
        assert newest.pieces == ((0, 0, 0), (0, 0, 1))


def test_pause_stops_all_ranks_at_the_same_step(world: World) -> None:
    epoch = world.run()
    for slot in (0, 1):
        world.membership.direct(slot, DirectiveKind.PAUSE, epoch=epoch)
    reports = [world.membership.wait_phase(slot, AgentPhase.PAUSED) for slot in (0, 1)]
    assert {report.epoch for report in reports} == {epoch}
    ends = [list((agent.folder / "snapshots" / "mailboxes").glob("*/result.json")) for agent in world.agents]
    steps = {path.read_text() for found in ends for path in found}
    assert all('"outcome": "Paused"' in text for text in steps)
    nonce = world.membership.prepare((0, 1))
    report = world.membership.wait_phase(
        0, AgentPhase.PAUSED
    )  # a prepared node that has paused is still a paused one
    assert report.prepared == nonce


def test_an_error_in_the_training_code_arrives_with_its_message(world: World) -> None:
    epoch = world.run()
    world.agents[0].order(1, "raise")
    report = world.membership.wait_phase(0, AgentPhase.FAILED)
    failure = next(e for e in report.exits if e.local_rank == 1)
    assert failure.exit_code == 1
    assert "the loss is a banana" in failure.message
    assert world.agents[0].notes("entered", epoch + 1) == []


def test_a_damaged_checkpoint_is_named_and_stays_named(world: World) -> None:
    world.run()
    world.agents[1].order(2, "damaged")
    report = world.membership.wait_phase(1, AgentPhase.FAILED)
    assert 65 in {e.exit_code for e in report.exits}
    assert report.damaged == ("step-00000005.e0001",)
    epoch = world.run()
    report = world.membership.wait_phase(1, AgentPhase.RUNNING)
    assert (report.epoch, report.damaged, report.exits) == (epoch, ("step-00000005.e0001",), ())


def test_a_start_for_another_session_or_an_epoch_that_ended_starts_nothing(world: World) -> None:
    membership = world.membership
    epoch = world.run()
    world.agents[0].order(0, "raise")
    for slot in (0, 1):
        membership.wait_phase(slot, AgentPhase.FAILED)  # the other node's collective broke
    record = membership.record((0, 1), "n", Restore(RestoreSource.INITIAL))
    assert record.epoch == epoch + 1
    stranger = tuple(
        type(m)(m.slot, m.incarnation, "stranger", m.node, m.address, m.peer_port) for m in record.members
    )
    for slot in (0, 1):
        membership.direct(
            slot,
            DirectiveKind.START,
            epoch=record.epoch,
            record=type(record)(**{**vars(record), "members": stranger}),
        )
        membership.direct(
            slot, DirectiveKind.START, epoch=epoch, record=type(record)(**{**vars(record), "epoch": epoch})
        )
    time.sleep(1.0)
    assert [membership.phase(slot) for slot in (0, 1)] == [AgentPhase.FAILED, AgentPhase.FAILED]
    assert world.agents[0].notes("entered", epoch + 1) == []


def test_a_dead_fork_server_is_replaced(world: World) -> None:
    epoch = world.run()
    agent = world.agents[1]
    server = agent.fork_server()
    ranks = {n["pid"] for n in agent.notes("entered", epoch)}
    assert ranks <= set(children(server))
    os.kill(server, signal.SIGKILL)
    report = world.membership.wait_phase(1, AgentPhase.FAILED)
    assert any("fork server died" in e.message for e in report.exits)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), 2, "its ranks are dead")
    world.run()  # waits for the new server's imports, no more
    assert agent.fork_server() != server


def test_stopping_and_continuing_an_agent_is_harmless(world: World) -> None:
    epoch = world.run()
    os.kill(world.agents[1].pid, signal.SIGSTOP)
    before = world.membership.wait_step(0, 1, epoch).progress
    time.sleep(1.5)
    os.kill(world.agents[1].pid, signal.SIGCONT)
    world.membership.wait_step(0, before.step + 20, epoch)  # type: ignore[union-attr]
    at = time.time()
    world.membership.wait_for(lambda: world.membership.seats[1].reported_at > at, 5)
    assert world.membership.wait_phase(1, AgentPhase.RUNNING).epoch == epoch
    assert len(world.agents[1].notes("entered", epoch)) == 2


def test_a_node_fetches_the_pieces_that_it_lacks_before_its_ranks_start(world: World) -> None:
    membership, joiner = world.membership, world.agents[1]
    epoch = world.run()
    membership.wait_step(0, 5, epoch)
    nonce = membership.prepare((0, 1))
    held = [s for s in membership.wait_phase(0, AgentPhase.IDLE).snapshots if len(s.pieces) == 2][-1]
    for path in (joiner.folder / "snapshots").rglob("*.snap"):
        path.unlink()
    restore = Restore(RestoreSource.MEMORY, held.step, held.epoch, layout=held.layout, holders=(0,))
    record = membership.record((0, 1), nonce, restore)
    membership.start(record)
    files = [note["files"] for note in joiner.wait_notes("entered", record.epoch)]
    assert files == [[f"e{held.epoch:04d}.s{held.step:08d}.p0-0-{tensor}.snap" for tensor in (0, 1)]] * 2
    assert membership.wait_step(0, held.step + 1, record.epoch).phase is AgentPhase.RUNNING

    # and when nobody can give them, the epoch fails and says what is missing
    nonce = membership.prepare((0, 1))
    membership.start(
        membership.record((0, 1), nonce, Restore(RestoreSource.MEMORY, 1, 1, layout=(1, 1, 2), holders=(0,)))
    )
    for slot in (0, 1):
        failure = membership.wait_phase(slot, AgentPhase.FAILED).exits[0]
        assert failure.exit_code == ExitCode.NOT_FETCHED
        assert "memory:step-00000001.e0001" not in membership.seats[slot].report.damaged
        assert "pieces [(0, 0, 0), (0, 0, 1)] of step 1 (epoch 1) cannot be fetched" in failure.message


def test_a_fetch_goes_on_when_the_same_record_is_told_again(world: World) -> None:
    membership, (holder, joiner) = world.membership, world.agents
    nonce = membership.prepare((0, 1))
    for path in (joiner.folder / "snapshots").rglob("*.snap"):
        path.unlink()
    hold(holder.folder / "snapshots", PIECES[:2], 1000)
    restore = Restore(RestoreSource.MEMORY, WANTED.step, WANTED.epoch, layout=(1, 1, 2), holders=(0,))

    def slowly(number: int, whole: bytes) -> bytes:
        asked.set()
        told_again.wait(20)
        return whole

    asked, told_again = threading.Event(), threading.Event()
    with a_scripted_peer(0, slowly, PIECES[:2]) as peer:
        record = membership.record((0, 1), nonce, restore)
        served = replace(record.members[0], peer_port=peer.peer_port)
        membership.start(replace(record, members=(served, record.members[1])))
        assert asked.wait(20)
        membership.direct(1, DirectiveKind.START, epoch=record.epoch, record=record)
        time.sleep(0.5)  # a report or two, so that it has heard it
        told_again.set()
        assert len(joiner.wait_notes("entered", record.epoch)[0]["files"]) == 2
    assert membership.wait_step(0, WANTED.step + 1, record.epoch).phase is AgentPhase.RUNNING


def test_fifty_restarts_leak_nothing(world: World) -> None:
    def used(agent: AgentProcess) -> dict[str, int]:
        proc = Path(f"/proc/{agent.pid}")
        server = Path(f"/proc/{agent.fork_server()}")
        return {
            "descriptors": len(list((proc / "fd").iterdir())),
            "threads": len(list((proc / "task").iterdir())),
            "server descriptors": len(list((server / "fd").iterdir())),
            "server children": len(children(agent.fork_server())),
            "listening": sum(" 0A " in line for line in (proc / "net" / "tcp").read_text().splitlines()),
        }

    world.run(0)
    before = used(world.agents[0])
    for turn in range(50):
        epoch = world.run(0)
        if turn % 2:
            os.kill(world.rank_pid(0, epoch), signal.SIGKILL)
            world.membership.wait_phase(0, AgentPhase.FAILED)
    world.run(0)
    after = used(world.agents[0])
    assert after["server children"] == before["server children"] == 2
    for name, most in (("descriptors", 6), ("threads", 2), ("server descriptors", 2), ("listening", 50)):
        assert after[name] <= before[name] + most, (name, before, after)
    assert "/dev/shm/sem." not in Path(f"/proc/{world.agents[0].pid}/maps").read_text()
    assert len(list((world.agents[0].folder / "snapshots").rglob("*.snap"))) <= 8


def test_the_final_node_leaves_the_result_and_the_other_waits_for_what_comes(world: World) -> None:
    last_steps = Restore(RestoreSource.DURABLE, step=99990, epoch=1, manifest="step-00099990.e0001")
    record = world.membership.form((0, 1), last_steps)
    family = world.agents[0].family()
    assert world.agents[0].wait(30) == 0
    wait_gone(family)
    assert world.membership.phase(0) is AgentPhase.DONE
    last = world.agents[0].termination()
    assert last is not None
    assert (last.reason, last.step, last.tokens, last.loss) == ("Done", 100000, 10000000, 1e-5)
    assert (last.epoch, last.manifest, last.export) == (record.epoch, "step-9.e1", "file:///models/x")
    assert last.summary is not None
    assert last.summary.last_step == 100000

    assert world.membership.wait_phase(1, AgentPhase.DONE).epoch == record.epoch
    world.run(1)  # say, because the final node died before it could save
    assert world.agents[1].process.poll() is None


def test_ranks_that_find_no_usable_checkpoint_end_the_node_for_good(world: World) -> None:
    agent = world.agents[1]
    world.run(1)
    family = agent.family()
    agent.order(1, "exit-66")
    assert agent.wait(10) == 66
    wait_gone(family)
    last = agent.termination()
    assert last is not None
    assert (last.reason, last.message) == ("NoUsableCheckpoint", "ends with 66 on request")
    assert world.membership.phase(1) is AgentPhase.FAILED
