"""Memory restore: which pieces a node needs, and how it gets them from peers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.trainer.fake_rank import sealed

from trainer.agent import fetch, pieces
from trainer.agent.peers import PeerServer
from trainer.agent.snapshots import Snapshots
from trainingrun.protocol.records import Epoch, Member, Restore, RestoreSource, Rung, Store, Trigger

LAYOUT = (1, 2, 2)
PIECES = tuple(sorted(pieces.all_pieces(LAYOUT)))


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


def test_a_node_needs_all_pieces_when_the_layout_changes() -> None:
    assert pieces.needed(an_epoch(a_rung(nodes=1, replicate=1), (1, 4, 1)), 0) == pieces.all_pieces((1, 4, 1))


def test_joiners_ask_different_holders_first() -> None:
    record = an_epoch(a_rung(nodes=4, processes=2), LAYOUT, holders=(0, 1, 3))
    order = {member: [holder.slot for holder in pieces.holders(record, member)] for member in range(4)}
    assert order == {0: [1, 3], 1: [3, 0], 2: [3, 0, 1], 3: [0, 1]}


@contextmanager
def a_peer(
    folder: Path, slot: int, held: tuple[pieces.Piece, ...], size: int = 3_000_000
) -> Iterator[Member]:
    for number, piece in enumerate(held):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"e0003.r{number}.a.snap").write_bytes(sealed(3, 7, LAYOUT, piece, size))
    server = PeerServer(Snapshots(folder))
    server.start()
    try:
        yield Member(slot, 0, f"s{slot}", f"n{slot}", "127.0.0.1", server.port)
    finally:
        server.close()


@contextmanager
def a_dead_peer(slot: int) -> Iterator[Member]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        yield Member(slot, 0, f"s{slot}", f"n{slot}", "127.0.0.1", taken.getsockname()[1])


@contextmanager
def a_peer_that_breaks_off(slot: int) -> Iterator[Member]:
    """It announces all pieces and sends half of each."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'[{"piece": [0, 0, 0], "name": "e0003.r0.a.snap", "size": 1000}]'
            self.send_response(200)
            if self.path.endswith(".snap"):
                self.send_header("Content-Length", "500")
                body = bytes(500)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Member(slot, 0, f"s{slot}", f"n{slot}", "127.0.0.1", server.server_address[1])
    server.shutdown()
    server.server_close()


def no() -> bool:
    return False


def test_pieces_come_from_whoever_has_them_past_dead_and_faulty_peers(tmp_path: Path) -> None:
    mine = Snapshots(tmp_path / "mine")
    with (
        a_dead_peer(1) as dead,
        a_peer_that_breaks_off(2) as faulty,
        a_peer(tmp_path / "b", 3, PIECES[:3]) as some,
        a_peer(tmp_path / "c", 4, PIECES[2:]) as others,
    ):
        copied = fetch.fetch(mine.fetched_from, 3, 7, PIECES, [dead, faulty, some, others], no)
    assert copied == 4 * (3_000_000 + 4096)
    assert sorted(mine.files_of(3, 7)) == list(PIECES)
    assert [s.pieces for s in mine.held()] == [PIECES]
    original = (tmp_path / "c" / "e0003.r1.a.snap").read_bytes()
    assert mine.files_of(3, 7)[PIECES[3]].read_bytes() == original
    assert not list(tmp_path.rglob("*.partial"))


def test_pieces_that_nobody_can_give_are_named_with_the_reasons(tmp_path: Path) -> None:
    mine = Snapshots(tmp_path / "mine")
    with (
        a_dead_peer(1) as dead,
        a_peer(tmp_path / "b", 3, PIECES[:3]) as some,
        pytest.raises(fetch.PiecesMissing, match=r"\(0, 1, 1\).*step 7 \(epoch 3\).*slot 1 .*refused"),
    ):
        fetch.fetch(mine.fetched_from, 3, 7, PIECES, [dead, some], no, patience_seconds=0.1)


def test_a_peer_that_failed_once_is_asked_again(tmp_path: Path) -> None:
    mine = Snapshots(tmp_path / "mine")
    with a_peer(tmp_path / "b", 3, PIECES) as peer:
        folders = iter((tmp_path / "no-folder", mine.fetched_from(3)))
        (tmp_path / "no-folder").write_text("a file, so that the first try fails")
        copied = fetch.fetch(lambda _: next(folders), 3, 7, PIECES, [peer], no)
    assert copied == 4 * (3_000_000 + 4096)
    assert sorted(mine.files_of(3, 7)) == list(PIECES)


def test_nobody_is_asked_again_when_something_more_important_has_come(tmp_path: Path) -> None:
    mine = Snapshots(tmp_path / "mine")
    with a_dead_peer(1) as dead, pytest.raises(fetch.Interrupted):
        fetch.fetch(mine.fetched_from, 3, 7, PIECES, [dead], lambda: True)


def test_a_fetch_is_given_up_when_something_more_important_comes(tmp_path: Path) -> None:
    mine = Snapshots(tmp_path / "mine")
    with a_peer(tmp_path / "b", 3, PIECES) as peer, pytest.raises(fetch.Interrupted):
        fetch.fetch(mine.fetched_from, 3, 7, PIECES, [peer], lambda: True)
    assert mine.held() == ()
    assert not list(tmp_path.rglob("*.partial"))


def test_a_peer_serves_snapshots_and_nothing_else(tmp_path: Path) -> None:
    import http.client

    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "secret.txt").write_text("no")
    (tmp_path / "secret.snap").write_text("no")
    with a_peer(tmp_path / "peer", 1, PIECES[:1]) as peer:
        connection = http.client.HTTPConnection(peer.address, peer.peer_port, timeout=5)
        for path in (
            "/",
            "/snapshots",
            "/snapshots/3/7/secret.txt",
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
    mine.prune(replace(restore, source=RestoreSource.DURABLE))
    assert [(s.epoch, s.step) for s in mine.held()] == [(2, 8)]
