"""An agent keeps what its buddy holds: only what the ranks name, checked, never more than two generations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.trainer.fake_rank import sealed
from tests.trainer.snapshot_peers import a_dead_peer, member

from trainer.agent import fetch, pieces
from trainer.agent.buddies import Buddies
from trainer.agent.peers import PeerServer
from trainer.agent.snapshots import Snapshots
from trainer.checkpoint import snapshot_format as form
from trainer.job import Copied, Generation, Mailbox, RankJob
from trainingrun.protocol.records import (
    Epoch,
    Member,
    Restore,
    RestoreSource,
    Rung,
    SnapshotId,
    Store,
    Trigger,
)

LAYOUT = (2, 1, 2)
OWN, THEIRS = ((0, 0, 0), (0, 0, 1)), ((1, 0, 0), (1, 0, 1))  # pipeline 2 over two nodes, tensor 2 in each
FIRST, SECOND, THIRD = SnapshotId(1, 5), SnapshotId(1, 6), SnapshotId(1, 7)


def a_job(folder: Path, members: tuple[Member, ...], *, buddies: bool = True) -> RankJob:
    rung = Rung(2, 2, 2, 1, 1, 2, 1, 2, 0, 2, buddies=buddies)
    store, restore = Store("127.0.0.1", 1, "e1/"), Restore(RestoreSource.INITIAL)
    record = Epoch("r-e1", "r", "u", 1, "r-r1", "n", 0.0, members, rung, store, restore, Trigger.STARTED, 0.0)
    return RankJob({}, record, 0, 0, "u", folder / "mailbox", folder, (), folder, folder)


def seal(folder: Path, snapshot: SnapshotId, held: tuple[pieces.Piece, ...], size: int = 100_000) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, piece in enumerate(held):
        name = form.file_name(snapshot.epoch, number, snapshot.step % 2)
        (folder / name).write_bytes(sealed(snapshot.epoch, snapshot.step, LAYOUT, piece, size))


def soon(happened: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not happened() and time.monotonic() < end:
        time.sleep(0.02)
    return happened()


class Pair:
    """This node, and its buddy's folder as it is served."""

    def __init__(self, folder: Path, buddy: Member) -> None:
        self.mine, self.theirs = Snapshots(folder / "mine"), folder / "theirs"
        self.job = a_job(folder / "mine", (member(0, 1), buddy))
        self.mailbox = Mailbox(self.job.mailbox)
        self.buddies = Buddies(self.mine)

    def name(self, snapshot: SnapshotId, kept: SnapshotId | None = None) -> None:
        self.mailbox.post_generation(Generation(snapshot, kept))

    def answers(self, snapshot: SnapshotId, complete: bool) -> bool:
        return soon(lambda: self.mailbox.copied() == Copied(snapshot, complete))

    def holds(self, snapshot: SnapshotId) -> set[pieces.Piece]:
        files = self.mine.files_of(snapshot.epoch, snapshot.step)
        assert all(form.flaw(path, snapshot, piece) == "" for piece, path in files.items())
        return set(files)


@contextmanager
def a_pair(folder: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        server = PeerServer(Snapshots(folder / "theirs"))
        server.start()
        stack.callback(server.close)
        pair = Pair(folder, member(1, server.port))
        stack.callback(pair.buddies.end)
        yield pair


def test_it_keeps_the_buddy_s_part_beside_its_own_and_at_most_two_generations(tmp_path: Path) -> None:
    with a_pair(tmp_path) as pair:
        pair.buddies.begin(pair.job)
        kept = None
        for snapshot in (FIRST, SECOND, THIRD):
            seal(pair.mine.folder, snapshot, OWN)
            seal(pair.theirs, snapshot, THEIRS)
            pair.name(snapshot, kept)
            assert pair.answers(snapshot, True)
            assert pair.holds(snapshot) == {*OWN, *THEIRS}
            kept = snapshot
        assert {(held.step, held.pieces) for held in pair.mine.held()} == {
            (6, (*OWN, *THEIRS)),
            (7, (*OWN, *THEIRS)),
        }


def test_a_buddy_that_has_not_what_it_should_is_answered_with_no_and_tried_with_the_next(
    tmp_path: Path,
) -> None:
    with a_pair(tmp_path) as pair:
        pair.buddies.begin(pair.job)
        seal(pair.theirs, FIRST, THEIRS[:1])
        pair.name(FIRST)
        assert pair.answers(FIRST, False)
        seal(pair.theirs, SECOND, THEIRS)
        pair.name(SECOND)
        assert pair.answers(SECOND, True)
        assert pair.holds(SECOND) == set(THEIRS)


def test_a_part_that_was_written_over_meanwhile_is_not_kept(tmp_path: Path) -> None:
    """The bytes that arrive are not those that the header promises: as after a pause that did not wait."""
    with a_pair(tmp_path) as pair:
        pair.buddies.begin(pair.job)
        seal(pair.theirs, FIRST, THEIRS)
        path = pair.theirs / form.file_name(FIRST.epoch, 0, FIRST.step % 2)
        torn = bytearray(path.read_bytes())
        torn[-50_000] ^= 1
        path.write_bytes(torn)
        pair.name(FIRST)
        assert pair.answers(FIRST, False)
        assert pair.holds(FIRST) <= {THEIRS[1]}


def test_a_buddy_that_is_dead_is_given_up_after_a_while_and_nothing_half_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_PAUSE_SECONDS", 0.01)
    with a_dead_peer(1) as dead:
        pair = Pair(tmp_path, dead)
        pair.buddies.begin(pair.job)
        pair.name(FIRST)
        assert not soon(lambda: pair.mailbox.copied() is not None, 0.5)
        pair.buddies.end()
        assert not soon(lambda: pair.mailbox.copied() is not None, 0.5)  # the epoch is over: nobody asks
        assert not list(pair.mine.folder.rglob("*.snap")) and not list(pair.mine.folder.rglob("*.partial"))


def test_a_newer_generation_overtakes_one_that_does_not_come(tmp_path: Path) -> None:
    with a_pair(tmp_path) as pair:
        slow = Pair(tmp_path / "other", member(1, 1))
        slow.buddies.begin(slow.job)
        slow.name(FIRST)
        time.sleep(0.3)
        seal(slow.mine.folder, SECOND, (*OWN, *THEIRS))  # all is here already
        slow.name(SECOND)
        assert slow.answers(SECOND, True)
        slow.buddies.end()
        assert pair.mailbox.copied() is None


def test_without_buddies_in_the_plan_nothing_is_copied(tmp_path: Path) -> None:
    with a_pair(tmp_path) as pair:
        job = a_job(tmp_path / "mine", pair.job.record.members, buddies=False)
        seal(pair.theirs, FIRST, THEIRS)
        pair.buddies.begin(job)
        pair.name(FIRST)
        assert not soon(lambda: pair.mailbox.copied() is not None, 0.5)
        assert pair.holds(FIRST) == set()


def test_each_member_is_kept_by_exactly_one_other() -> None:
    rung = Rung(5, 1, 5, 1, 1, 1, 1, 5, 0, 2, buddies=True)
    members = tuple(member(slot, 1) for slot in range(5))
    store, restore = Store("127.0.0.1", 1, "e1/"), Restore(RestoreSource.INITIAL)
    record = Epoch("r-e1", "r", "u", 1, "r-r1", "n", 0.0, members, rung, store, restore, Trigger.STARTED, 0.0)
    keepers = [pieces.buddy(record, one) for one in range(5)]
    assert sorted(keepers) == list(range(5))
    assert all(keeper != one for one, keeper in enumerate(keepers))
