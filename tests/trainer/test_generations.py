"""Whatever happens, whichever node is lost: memory never holds less than the newest complete generation."""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.agent import pieces
from trainer.checkpoint import snapshot_format as form
from trainer.generations import Generations
from trainer.job import Copied, Mailbox
from trainer.keeping import SnapshotKeeper
from trainer.step import Votes
from trainingrun.membership.restore import choose_restore
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

OLD = SnapshotId(epoch=1, step=3)


def test_a_generation_is_complete_when_every_node_says_so_and_the_one_before_is_kept_until_then() -> None:
    found = Generations(2, None)
    assert found.ready
    found.taken(SnapshotId(1, 5))
    assert not found.ready
    assert found.answered(0, 0) is None
    assert found.passed() == SnapshotId(1, 5)
    assert not found.ready
    assert found.answered(1, 0) is None
    assert found.kept is None
    assert found.answered(2, 0) == SnapshotId(1, 5) == found.kept
    assert found.ready
    assert found.passed() is None


def test_a_copy_that_failed_is_given_up_once_all_have_answered_and_nothing_else_is_kept_for_it() -> None:
    found = Generations(2, OLD)
    assert found.passed() == OLD
    assert found.answered(0, 1) is None
    assert not found.ready
    assert found.answered(1, 1) is None
    assert found.ready
    assert found.kept == OLD


def test_a_pause_overtakes_what_is_being_copied() -> None:
    found = Generations(2, None)
    found.taken(SnapshotId(1, 5))
    found.passed()
    found.taken(SnapshotId(1, 9))
    assert found.answered(2, 0) is None  # of step 5, which is written over
    assert found.passed() == SnapshotId(1, 9)
    assert found.answered(2, 0) == SnapshotId(1, 9)


# The same with real snapshot files ----------------------------------------------------------------


class Killed(Exception):
    pass


@dataclass
class Node:
    """A rank's keeper and its agent, in one folder."""

    member: int
    record: Epoch
    folder: Path
    step: int = 0
    known: SnapshotId | None = None  # the newest generation that this rank knows to be complete
    weights: torch.Tensor = field(default_factory=lambda: torch.zeros(3))

    def __post_init__(self) -> None:
        state: Any = self
        axes: Any = SimpleNamespace(piece=pieces.piece_of(self.member, self.record.rung))
        job: Any = SimpleNamespace(
            record=self.record, snapshot_dir=self.folder, mailbox=self.folder / "mailbox"
        )
        self.keeper = SnapshotKeeper(job, 0, axes, state, on=True)
        self.mailbox = Mailbox(job.mailbox)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"w": self.weights}

    def scalars(self) -> dict[str, Any]:
        return {"step": self.step}

    def take(self, *, dies: bool) -> None:
        self.weights.fill_(self.step)
        if dies:
            writer = self.keeper._writer
            writer._unseal(writer._free_buffer())
            raise Killed
        self.keeper.take()

    def pass_by(self, agreed: Votes) -> None:
        complete = self.keeper.everyone_passed(agreed)
        if complete is not None:
            self.known = SnapshotId(
                self.record.epoch if complete > self.record.restore.step else OLD.epoch, complete
            )

    def copy_from(self, buddy: Node, *, fails: bool) -> None:
        """As the agent does it: the whole file or none, and only what its checksums say is right."""
        generation = self.mailbox.generation()
        if generation is None:
            return
        wanted, folder = generation.snapshot, self.folder / form.BUDDIES
        folder.mkdir(exist_ok=True)
        form.drop_copies(folder, {wanted, generation.kept})
        piece = pieces.piece_of(buddy.member, self.record.rung)
        for path in () if fails else form.files_of(buddy.folder, wanted.epoch, wanted.step):
            if not form.flaw(path, wanted, piece):
                shutil.copy(path, folder / form.fetched_name(wanted.epoch, wanted.step, piece))
        there = {
            header.piece
            for path in form.files_of(self.folder, wanted.epoch, wanted.step)
            if (header := form.read_header(path))
        }
        self.mailbox.post_copied(Copied(wanted, piece in there))


def a_world(folder: Path, count: int, *, restored: bool) -> list[Node]:
    rung = Rung(count, 1, count, 1, 1, 1, 1, count, 0, 2, buddies=True)
    members = tuple(Member(slot, 0, f"s{slot}", f"n{slot}", "127.0.0.1", 1) for slot in range(count))
    restore = Restore(RestoreSource.INITIAL)
    if restored:
        restore = Restore(RestoreSource.MEMORY, OLD.step, OLD.epoch, layout=rung.layout)
    store = Store("127.0.0.1", 1, "e2/")
    record = Epoch("r-e2", "r", "u", 2, "r-r1", "n", 0.0, members, rung, store, restore, Trigger.STARTED, 0.0)
    nodes = [Node(member, record, folder / str(member), step=restore.step) for member in range(count)]
    for node in nodes if restored else ():
        old = Node(node.member, a_first(record), folder / str(node.member), step=OLD.step)
        old.take(dies=False)
    return nodes


def a_first(record: Epoch) -> Epoch:
    return Epoch(
        "r-e1",
        "r",
        "u",
        OLD.epoch,
        "r-r1",
        "n",
        0.0,
        record.members,
        record.rung,
        record.store,
        Restore(RestoreSource.INITIAL),
        Trigger.STARTED,
        0.0,
    )


def restore_point(survivors: list[Node]) -> SnapshotId | None:
    held = {node.member: form.held(node.folder) for node in survivors}
    chosen = choose_restore(held, [], [], ["something"], fresh=False, location="file:///x")
    if not isinstance(chosen, Restore):
        return None
    found = SnapshotId(chosen.epoch, chosen.step)
    for node in survivors:
        for path in form.files_of(node.folder, chosen.epoch, chosen.step):
            header = form.read_header(path)
            assert header is not None
            assert form.flaw(path, found, header.piece) == ""
    return found


def a_step(chance: random.Random, nodes: list[Node], last: bool) -> None:
    """All ranks at once, as the all-reduce makes them; in the last one some get further than others before the kill."""

    def often() -> bool:
        return chance.random() < 0.5

    def seldom() -> bool:
        return chance.random() < 0.15

    votes = [node.keeper.copied() for node in nodes]
    ready = {node.keeper.ready for node in nodes}
    assert len(ready) == 1
    snapshot = (ready == {True} and often()) or seldom()  # the latter for a pause
    agreed = Votes(copied=votes.count(True), not_copied=votes.count(False))
    for node in nodes:
        if last and often():
            continue  # killed before the all-reduce had told it
        node.step += 1
        node.pass_by(agreed)
        if snapshot:
            try:
                node.take(dies=last and often())
            except Killed:
                continue
    for node in nodes:
        if often():
            node.copy_from(nodes[(node.member + 1) % len(nodes)], fails=seldom())


@pytest.mark.parametrize("tens", range(20))
def test_any_one_node_may_be_lost_at_any_moment_once_a_generation_was_complete(tens: int) -> None:
    for seed in range(10 * tens, 10 * tens + 10):
        chance = random.Random(seed)
        folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        try:
            live_and_die(chance, folder)
        finally:
            shutil.rmtree(folder)


def live_and_die(chance: random.Random, folder: Path) -> None:
    restored, steps = chance.random() < 0.5, chance.randint(1, 20)
    nodes = a_world(folder, chance.randint(2, 4), restored=restored)
    for step in range(steps):
        a_step(chance, nodes, last=step == steps - 1)
    if restored:
        assert restore_point(nodes) is not None  # whatever became of the ranks
    known = [node.known for node in nodes if node.known is not None]
    newest = max(((one.epoch, one.step) for one in known), default=None)
    for lost in nodes if newest else ():
        found = restore_point([node for node in nodes if node is not lost])
        assert found is not None
        assert (found.epoch, found.step) >= newest
    for node in nodes:
        assert len({(h.epoch, h.step) for h in form.held(node.folder / form.BUDDIES)}) <= 2
