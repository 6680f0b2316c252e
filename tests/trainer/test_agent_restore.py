"""Memory restore: which pieces a node needs, what its peers serve, and what it keeps."""

from __future__ import annotations

import http.client
from dataclasses import replace
from pathlib import Path

from tests.trainer.fake_rank import sealed
from tests.trainer.snapshot_peers import LAYOUT, PIECES, a_peer

from trainer.agent import pieces
from trainer.agent.snapshots import Snapshots
from trainer.checkpoint import snapshot_format as form
from trainingrun.protocol.records import Epoch, Member, Restore, RestoreSource, Rung, Store, Trigger


def a_rung(nodes: int = 2, processes: int = 4, replicate: int = 2, shard: int = 2, tensor: int = 2) -> Rung:
    pipeline = nodes * processes // (replicate * shard * tensor)
    return Rung(nodes, processes, pipeline, replicate, shard, tensor, 1, 1, 0, 1)


def an_epoch(rung: Rung, layout: tuple[int, int, int], holders: tuple[int, ...] = ()) -> Epoch:
    members = tuple(
        Member(slot, 0, f"s{slot}", f"n{slot}", "127.0.0.1", 1000 + slot) for slot in range(rung.nodes)
    )
    restore = Restore(RestoreSource.MEMORY, step=7, epoch=3, layout=layout, holders=holders)
    store = Store("127.0.0.1", 1, "e4")
    return Epoch("r-e4", "r", "u", 4, "r-r1", "n", 0.0, members, rung, store, restore, Trigger.JOINED, 0.0)


def test_a_node_needs_the_pieces_of_its_own_ranks_when_the_layout_is_the_same() -> None:
    record = an_epoch(a_rung(), LAYOUT)
    assert pieces.needed(record, 0) == pieces.needed(record, 1) == frozenset(PIECES)
    narrow = an_epoch(a_rung(nodes=4, processes=2), LAYOUT)
    assert [sorted(pieces.needed(narrow, node)) for node in range(4)] == [
        [(0, 0, 0), (0, 0, 1)],
        [(0, 1, 0), (0, 1, 1)],
        [(0, 0, 0), (0, 0, 1)],
        [(0, 1, 0), (0, 1, 1)],
    ]
    staged = an_epoch(a_rung(nodes=2, processes=2, replicate=1, shard=1, tensor=2), (2, 1, 2))
    assert [sorted(pieces.needed(staged, node)) for node in range(2)] == [
        [(0, 0, 0), (0, 0, 1)],
        [(1, 0, 0), (1, 0, 1)],
    ]


def test_ranks_that_share_sequences_hold_the_same_and_copies_follow_each_other() -> None:
    """As `trainer.mesh.coordinates` has it."""
    rung = replace(a_rung(nodes=4, processes=4, replicate=2, shard=1, tensor=2), pipeline=2, context=2)
    assert [pieces.piece_of(rank, rung) for rank in range(8)] == [
        *[(0, 0, 0), (0, 0, 1)] * 2,
        *[(1, 0, 0), (1, 0, 1)] * 2,
    ]
    assert [pieces.piece_of(rank + 8, rung) for rank in range(8)] == [
        pieces.piece_of(rank, rung) for rank in range(8)
    ]


def test_a_node_needs_all_pieces_when_the_layout_changes() -> None:
    assert pieces.needed(an_epoch(a_rung(nodes=1, replicate=1), (1, 4, 1)), 0) == pieces.all_pieces((1, 4, 1))


def test_joiners_ask_different_holders_first() -> None:
    record = an_epoch(a_rung(nodes=4, processes=2), LAYOUT, holders=(0, 1, 3))
    order = {member: [holder.slot for holder in pieces.holders(record, member)] for member in range(4)}
    assert order == {0: [1, 3], 1: [3, 0], 2: [3, 0, 1], 3: [0, 1]}


def test_a_peer_serves_snapshots_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "secret.txt").write_text("no")
    (tmp_path / "secret.snap").write_text("no")
    with a_peer(tmp_path / "peer", 1, PIECES[:1]) as peer:
        connection = http.client.HTTPConnection(peer.address, peer.peer_port, timeout=5)
        for path in (
            "/",
            "/snapshots",
            "/snapshots/3/7/secret.txt",
            "/snapshots/3/7/e0003.r0.a.snap",
            "/snapshots/3/7/0-1-1",
            "/snapshots/3/7/../../secret.snap",
            "/snapshots/a/b",
        ):
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            assert response.status == 404, path
        connection.request("GET", "/snapshots/3/8")
        assert connection.getresponse().read() == b"[]"
        connection.close()


def test_what_is_pruned_is_neither_the_restore_point_nor_the_newest(tmp_path: Path) -> None:
    mine = Snapshots(tmp_path)
    for number, (epoch, step) in enumerate([(1, 5), (1, 6), (2, 7), (2, 8)]):
        (tmp_path / f"e{epoch:04d}.r{number}.a.snap").write_bytes(sealed(epoch, step, LAYOUT, PIECES[0]))
    restore = Restore(RestoreSource.MEMORY, step=6, epoch=1, layout=LAYOUT)
    mine.prune(restore)
    assert [(s.epoch, s.step) for s in mine.held()] == [(1, 6), (2, 8)]
    mine.prune(restore, buddies=True)
    assert [(s.epoch, s.step) for s in mine.held()] == [(1, 6)]
    (tmp_path / "e0002.r0.a.snap").write_bytes(sealed(2, 8, LAYOUT, PIECES[0]))
    mine.prune(replace(restore, source=RestoreSource.DURABLE))
    assert [(s.epoch, s.step) for s in mine.held()] == [(2, 8)]


def test_pruning_takes_along_what_an_interrupted_fetch_left(tmp_path: Path) -> None:
    mine = Snapshots(tmp_path)
    mine.fetched.mkdir()
    kept = mine.fetched / form.fetched_name(1, 6, PIECES[0])
    kept.write_bytes(sealed(1, 6, LAYOUT, PIECES[0]))
    form.partial_of(mine.fetched / form.fetched_name(1, 6, PIECES[1])).write_text("half a file")
    mine.prune(Restore(RestoreSource.MEMORY, step=6, epoch=1, layout=LAYOUT))
    assert list(mine.fetched.iterdir()) == [kept]
