"""Copies the pieces of a snapshot that this node lacks from peers that hold it, before its ranks start.

The newest state must not be given up for a connection that failed: all holders are asked again and again, until
membership says that one of them is gone (`interrupted`) or nothing has come for a while. A file gets its name only
when all of it is there and its checksums match, so a transfer that went wrong is never taken for a damaged snapshot:
that is said only of bytes that are wrong however often they are fetched.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.agent.pieces import Piece
from trainer.checkpoint import snapshot_format as form
from trainingrun.protocol.records import Member, SnapshotId

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0
_STALL_SECONDS = 10.0
_CHUNK_BYTES = 4 << 20
PATIENCE_SECONDS = (
    15.0  # since the first failure after a piece has come; a lost holder interrupts much earlier
)
_PAUSE_SECONDS = 0.2  # before all peers are asked again
_ATTEMPTS = 3  # at least, however long each takes
_CONCLUSIVE = 2  # so often in a row all holders have answered, and still something is missing


class PiecesMissing(Exception):
    """No peer could give these pieces. Nothing is known to be damaged."""


class PiecesDamaged(Exception):
    """All holders answer, and what they give of these pieces is wrong each time."""


class Interrupted(Exception):
    """Something more important came up; what was fetched so far stays."""


def fetch(
    folder: Path,
    snapshot: SnapshotId,
    pieces: Iterable[Piece],
    holders: Sequence[Member],
    interrupted: Callable[[], bool],
    patience_seconds: float = PATIENCE_SECONDS,
) -> int:
    """Bytes copied, one file in `folder` for each piece. Raises PiecesMissing, PiecesDamaged or Interrupted."""
    transfer = _Transfer(folder, snapshot, interrupted, set(pieces))
    failing_since: float | None = None
    attempts = answered = 0
    while True:
        before = len(transfer.missing)
        turn = transfer.ask_all(holders)
        if not transfer.missing:
            return transfer.copied
        if len(transfer.missing) < before:
            failing_since, attempts, answered = None, 0, 0
        if interrupted():
            raise Interrupted
        attempts += 1
        answered = 0 if turn.failures else answered + 1
        failing_since = time.monotonic() if failing_since is None else failing_since
        waited = time.monotonic() - failing_since
        if answered >= _CONCLUSIVE or (attempts >= _ATTEMPTS and waited >= patience_seconds):
            raise _giving_up(transfer, turn, conclusive=answered >= _CONCLUSIVE)
        time.sleep(_PAUSE_SECONDS)


@dataclass
class _Turn:
    """What came of asking every holder once."""

    failures: list[str] = field(default_factory=list)  # somebody gave no whole answer; the next time he may
    flaws: dict[Piece, str] = field(default_factory=dict)  # whole files with wrong content


@dataclass
class _Transfer:
    folder: Path
    snapshot: SnapshotId
    interrupted: Callable[[], bool]
    missing: set[Piece]
    copied: int = 0  # bytes
    name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])  # one that was overtaken may still write

    def ask_all(self, holders: Sequence[Member]) -> _Turn:
        turn = _Turn()
        for holder in holders:
            if not self.missing:
                break
            if self.interrupted():
                raise Interrupted
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                peer = http.client.HTTPConnection(holder.address, holder.peer_port, timeout=_CONNECT_SECONDS)
                with contextlib.closing(peer):
                    self._take_from(peer, f"slot {holder.slot}", turn)
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
                reason = str(error) or type(error).__name__
                turn.failures.append(f"slot {holder.slot} at {holder.address}:{holder.peer_port}: {reason}")
                logger.warning("fetching from a peer failed: %s", turn.failures[-1])
        return turn

    def _take_from(self, peer: http.client.HTTPConnection, who: str, turn: _Turn) -> None:
        """Take from one peer what is missing; what arrived well is not missing any more."""
        peer.connect()
        peer.sock.settimeout(_STALL_SECONDS)
        epoch, step = self.snapshot.epoch, self.snapshot.step
        for item in json.loads(_get(peer, f"/snapshots/{epoch}/{step}").read()):
            piece, size = _piece(item["piece"]), int(item["size"])
            if piece not in self.missing:
                continue
            path = self.folder / form.fetched_name(epoch, step, piece)
            with _get(peer, f"/snapshots/{epoch}/{step}/{form.piece_name(piece)}") as body:
                flaw = self._write(body, path, size, piece)
            if flaw:
                turn.flaws[piece] = f"{who}: {flaw}"
                logger.warning("a piece arrived with wrong content: %s from %s", piece, turn.flaws[piece])
            else:
                self.missing.discard(piece)
                self.copied += size

    def _write(self, body: http.client.HTTPResponse, path: Path, size: int, piece: Piece) -> str:
        """What is wrong with the content that came; "" when it is kept under its name."""
        partial = form.partial_of(path, self.name)
        written = 0
        try:
            with partial.open("wb") as file:
                while chunk := body.read(_CHUNK_BYTES):
                    if self.interrupted():
                        raise Interrupted
                    written += _keep(file, chunk)
            if written != size:
                raise OSError(f"{path.name}: {written} bytes arrived, {size} were announced")
            flaw = form.flaw(partial, self.snapshot, piece)
            if not flaw:
                partial.replace(path)
            return flaw
        finally:
            partial.unlink(missing_ok=True)


def _giving_up(transfer: _Transfer, turn: _Turn, *, conclusive: bool) -> PiecesMissing | PiecesDamaged:
    snapshot, asked = transfer.snapshot, [*turn.failures, *turn.flaws.values()]
    what = f"pieces {sorted(transfer.missing)} of step {snapshot.step} (epoch {snapshot.epoch})"
    text = f"{what} cannot be fetched: {'; '.join(asked) or 'no holder has them'}"
    return PiecesDamaged(text) if conclusive and turn.flaws else PiecesMissing(text)


def _piece(numbers: Any) -> Piece:
    pipeline, shard, tensor = (int(number) for number in numbers)
    return (pipeline, shard, tensor)


def _get(peer: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
    peer.request("GET", path)
    response = peer.getresponse()
    if response.status != 200:
        raise OSError(f"GET {path}: HTTP {response.status} {response.reason}")
    return response


def _keep(file: Any, chunk: bytes) -> int:
    try:
        return int(file.write(chunk))
    except OSError as error:
        raise OSError(f"{file.name} cannot be written on this node: {error.strerror}") from error
