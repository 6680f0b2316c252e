"""Fetching a snapshot from peers through all that may go wrong on the way: nothing that can be had is given up, and
what went wrong on the way is never called damaged.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.fake_rank import sealed
from tests.trainer.snapshot_peers import (
    LAYOUT,
    PIECES,
    WANTED,
    a_dead_peer,
    a_peer,
    a_scripted_peer,
    content,
    hold,
    member,
    never,
)

from trainer.agent.fetch import Interrupted, PiecesDamaged, PiecesMissing, fetch
from trainer.agent.peers import PeerServer
from trainer.agent.pieces import Piece
from trainer.agent.snapshots import Snapshots
from trainer.checkpoint import snapshot_format as form
from trainingrun.protocol.records import Member, Restore, RestoreSource

FIRST = PIECES[:1]


def half(whole: bytes) -> bytes:
    return whole[: len(whole) // 2]


def flipped(whole: bytes) -> bytes:
    """One byte of a tensor is another."""
    middle = len(whole) // 2
    return whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]


def arrived(folder: Path) -> list[Piece]:
    """Pieces that count as held here, each checked; nothing else may be left."""
    files = Snapshots(folder.parent).files_of(WANTED.epoch, WANTED.step)
    assert all(form.flaw(path, WANTED, piece) == "" for piece, path in files.items())
    assert not folder.exists() or sorted(folder.iterdir()) == sorted(files.values())
    return sorted(files)


def get(
    folder: Path,
    holders: Sequence[Member],
    wanted: Sequence[Piece] = FIRST,
    interrupted: Callable[[], bool] = never,
    patience_seconds: float = 20.0,
) -> int:
    return fetch(folder, WANTED, wanted, holders, interrupted, patience_seconds)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return Snapshots(tmp_path / "mine").fetched


# ---- what goes well


def test_pieces_come_from_whoever_has_them_past_dead_and_faulty_peers(tmp_path: Path, mine: Path) -> None:
    with (
        a_dead_peer(1) as dead,
        a_scripted_peer(2, lambda _, whole: half(whole)) as faulty,
        a_peer(tmp_path / "b", 3, PIECES[:3]) as some,
        a_peer(tmp_path / "c", 4, PIECES[2:]) as others,
    ):
        copied = get(mine, [dead, faulty, some, others], PIECES)
    assert copied == sum(len(content(piece, 3_000_000)) for piece in PIECES)
    assert arrived(mine) == list(PIECES)
    assert [snapshot.pieces for snapshot in Snapshots(mine.parent).held()] == [PIECES]


def test_a_node_passes_on_what_it_fetched_although_its_own_files_have_the_same_names(
    tmp_path: Path, mine: Path
) -> None:
    with a_peer(tmp_path / "a", 1, PIECES[:1]) as one, a_peer(tmp_path / "b", 2, PIECES[1:2]) as other:
        get(Snapshots(tmp_path / "a").fetched, [other], PIECES[1:2])
        get(mine, [one], PIECES[:2])
    assert arrived(mine) == list(PIECES[:2])


# ---- what goes wrong for a while


def test_a_transfer_that_broke_off_is_made_again(mine: Path) -> None:
    with a_scripted_peer(1, lambda number, whole: half(whole) if number < 4 else whole) as peer:
        get(mine, [peer])
    assert arrived(mine) == list(FIRST)


def test_a_peer_that_cannot_be_reached_yet_is_asked_until_it_can(tmp_path: Path, mine: Path) -> None:
    hold(tmp_path / "peer", FIRST, 1000)
    late = PeerServer(Snapshots(tmp_path / "peer"))  # its port is bound and takes connections; nobody answers
    timer = threading.Timer(1.0, late.start)
    timer.start()
    with a_dead_peer(2) as dead:
        get(mine, [dead, member(1, late.port)])
    late.close()
    assert arrived(mine) == list(FIRST)


def test_wrong_bytes_on_the_way_are_fetched_again_and_nothing_is_damaged(mine: Path) -> None:
    with a_scripted_peer(1, lambda number, whole: flipped(whole) if number == 0 else whole) as peer:
        get(mine, [peer])
    assert arrived(mine) == list(FIRST)


def test_another_holders_copy_is_taken_when_one_is_damaged(tmp_path: Path, mine: Path) -> None:
    with (
        a_scripted_peer(1, lambda _, whole: flipped(whole)) as bad,
        a_peer(tmp_path / "b", 2, FIRST) as good,
    ):
        get(mine, [bad, good])
    assert arrived(mine) == list(FIRST)


def test_each_piece_that_comes_renews_the_patience(mine: Path) -> None:
    """The peer breaks off twice before each piece: more often than would be borne without any progress."""
    with a_scripted_peer(
        1, lambda number, whole: whole if number % 3 == 2 else half(whole), held=PIECES
    ) as peer:
        get(mine, [peer], PIECES, patience_seconds=0.0)
    assert arrived(mine) == list(PIECES)


@contextmanager
def all_the_while(what: Callable[[int], None]) -> Iterator[None]:
    over = threading.Event()

    def again_and_again() -> None:
        number = 0
        while not over.wait(0.001):
            what(number)
            number += 1

    thread = threading.Thread(target=again_and_again)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_peer_serves_while_its_agent_renews_the_mailboxes_and_prunes(
    tmp_path: Path, mine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All agents get the record of an epoch at once: one cleans up its folder while others read from it."""
    folder, restore = (
        tmp_path / "peer",
        Restore(RestoreSource.MEMORY, WANTED.step, WANTED.epoch, layout=LAYOUT),
    )
    holder = Snapshots(folder)

    def clean_up(number: int) -> None:
        shutil.rmtree(folder / "mailboxes")
        (folder / "mailboxes" / f"epoch-{number:04d}").mkdir(parents=True)
        (folder / form.file_name(2, number, 0)).write_bytes(sealed(2, number, LAYOUT, PIECES[0]))
        holder.prune(restore)

    (folder / "mailboxes" / "epoch-0000").mkdir(parents=True)
    with a_peer(folder, 1, PIECES, size=1000) as peer, all_the_while(clean_up):
        for _ in range(40):
            shutil.rmtree(mine, ignore_errors=True)
            get(mine, [peer], PIECES, patience_seconds=0.0)
            assert [s.step for s in holder.held() if s.epoch == WANTED.epoch] == [WANTED.step]
    assert arrived(mine) == list(PIECES)
    assert not caplog.records, "no attempt failed"


def test_a_folder_that_vanishes_while_snapshots_are_looked_for_hides_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(tmp_path, PIECES, 1000)
    (tmp_path / "mailboxes").mkdir()
    real = os.scandir

    def scandir(folder: Any = ".") -> Any:
        with real(folder) as entries:
            listed = list(entries)
        with contextlib.suppress(FileNotFoundError):
            (tmp_path / "mailboxes").rmdir()
        return contextlib.nullcontext(iter(listed))

    monkeypatch.setattr(os, "scandir", scandir)
    assert [snapshot.pieces for snapshot in Snapshots(tmp_path).held()] == [PIECES]
    assert not (tmp_path / "mailboxes").exists()


# ---- what goes wrong for good


def test_pieces_that_nobody_can_give_are_named_with_the_reasons(tmp_path: Path, mine: Path) -> None:
    with (
        a_dead_peer(1) as dead,
        a_peer(tmp_path / "b", 3, PIECES[:3]) as some,
        pytest.raises(PiecesMissing, match=r"\(0, 1, 1\).*step 7 \(epoch 3\).*slot 1 .*refused"),
    ):
        get(mine, [dead, some], PIECES, patience_seconds=0.1)
    assert arrived(mine) == list(PIECES[:3]), "what came stays for the next epoch"


def test_nobody_is_waited_for_when_every_holder_says_that_it_has_nothing(tmp_path: Path, mine: Path) -> None:
    began = time.monotonic()
    with (
        a_peer(tmp_path / "b", 3, PIECES[:3]) as some,
        pytest.raises(PiecesMissing, match="no holder has them"),
    ):
        get(mine, [some], PIECES, patience_seconds=60.0)
    assert time.monotonic() - began < 10


def test_content_that_is_wrong_however_often_it_is_fetched_is_damaged(mine: Path) -> None:
    with (
        a_scripted_peer(1, lambda _, whole: flipped(whole)) as one,
        a_scripted_peer(2, lambda _, whole: flipped(whole)) as other,
        pytest.raises(PiecesDamaged, match="slot 2: the checksum of x does not match"),
    ):
        get(mine, [one, other])
    assert arrived(mine) == []


def test_nothing_is_called_damaged_while_a_holder_cannot_be_asked(mine: Path) -> None:
    with (
        a_scripted_peer(1, lambda _, whole: flipped(whole)) as bad,
        a_dead_peer(2) as dead,
        pytest.raises(PiecesMissing, match=r"slot 2 .*refused.*slot 1: the checksum of x"),
    ):
        get(mine, [bad, dead], patience_seconds=0.5)


def test_a_snapshot_that_is_another_than_it_was_said_to_be_is_not_taken(mine: Path) -> None:
    other = sealed(WANTED.epoch, WANTED.step + 1, LAYOUT, FIRST[0], 100_000)
    with (
        a_scripted_peer(1, lambda *_: other) as peer,
        pytest.raises(PiecesDamaged, match=r"it is piece \(0, 0, 0\) of step 8 \(epoch 3\)"),
    ):
        get(mine, [peer])


def test_trouble_of_the_holder_is_told_in_its_own_words(tmp_path: Path, mine: Path) -> None:
    class Unlucky(Snapshots):
        def files_of(self, epoch: int, step: int) -> dict[Piece, Path]:
            raise OSError(5, "Input/output error")

    server = PeerServer(Unlucky(tmp_path / "peer"))
    server.start()
    with pytest.raises(PiecesMissing, match="HTTP 503 OSError: Input/output error"):
        get(mine, [member(1, server.port)], patience_seconds=0.1)
    server.close()


def test_a_node_that_cannot_keep_what_comes_says_so(tmp_path: Path, mine: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with a_peer(tmp_path / "b", 1, FIRST) as peer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            with pytest.raises(PiecesMissing, match=r"cannot be written on this node: File too large"):
                get(mine, [peer], patience_seconds=0.1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert arrived(mine) == []


# ---- what is more important


def test_nobody_is_asked_again_when_something_more_important_has_come(mine: Path) -> None:
    asked = iter((False, False, True))
    with a_dead_peer(1) as dead, pytest.raises(Interrupted):
        get(mine, [dead], interrupted=lambda: next(asked))


def test_a_fetch_is_given_up_when_something_more_important_comes(tmp_path: Path, mine: Path) -> None:
    asked = iter((False, True))
    with a_peer(tmp_path / "b", 3, PIECES) as peer, pytest.raises(Interrupted):
        get(mine, [peer], PIECES, interrupted=lambda: next(asked))
    assert arrived(mine) == []
