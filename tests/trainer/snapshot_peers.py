"""Peers that serve snapshots to a fetch: real ones, and scripted ones that fail in every way a peer can."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.trainer.fake_rank import sealed

from trainer.agent import pieces
from trainer.agent.peers import PeerServer
from trainer.agent.snapshots import Snapshots
from trainer.checkpoint import snapshot_format as form
from trainingrun.protocol.records import Member, SnapshotId

LAYOUT = (1, 2, 2)
PIECES = tuple(sorted(pieces.all_pieces(LAYOUT)))
WANTED = SnapshotId(epoch=3, step=7)


def content(piece: pieces.Piece, size: int) -> bytes:
    return sealed(WANTED.epoch, WANTED.step, LAYOUT, piece, size)


def member(slot: int, port: int) -> Member:
    return Member(slot, 0, f"s{slot}", f"n{slot}", "127.0.0.1", port)


def hold(folder: Path, held: tuple[pieces.Piece, ...], size: int) -> None:
    """As the ranks of a node leave them: one file for each local rank."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, piece in enumerate(held):
        (folder / form.file_name(WANTED.epoch, number, 0)).write_bytes(content(piece, size))


@contextmanager
def a_peer(
    folder: Path, slot: int, held: tuple[pieces.Piece, ...], size: int = 3_000_000
) -> Iterator[Member]:
    hold(folder, held, size)
    server = PeerServer(Snapshots(folder))
    server.start()
    try:
        yield member(slot, server.port)
    finally:
        server.close()


@contextmanager
def a_dead_peer(slot: int) -> Iterator[Member]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        yield member(slot, taken.getsockname()[1])


Body = Callable[[int, bytes], bytes]  # (n-th request for a piece, its content) -> what is sent of it


@contextmanager
def a_scripted_peer(
    slot: int, body: Body, held: tuple[pieces.Piece, ...] = PIECES[:1], size: int = 100_000
) -> Iterator[Member]:
    """It announces what it holds and sends what `body` says; less than all of a piece is a connection that broke."""
    asked = iter(range(1 << 20))
    whole = {form.piece_name(piece): content(piece, size) for piece in held}
    listed = [{"piece": piece, "size": len(whole[form.piece_name(piece)])} for piece in held]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            right = whole.get(self.path.rpartition("/")[2])
            answer = json.dumps(listed).encode() if right is None else body(next(asked), right)
            length = len(answer if right is None else right)
            self.send_response(200)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield member(slot, server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def never() -> bool:
    return False
