"""Copies the pieces of a snapshot that this node lacks from peers that hold it, before its ranks start.

A peer that fails is passed over for the next one; when none is left, all are asked again for a while, because the
newest state must not be given up for a connection that failed once. A file appears under its name only when all of it
is there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trainer.agent.pieces import Piece
from trainingrun.protocol.records import Member

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0
_STALL_SECONDS = 10.0
_CHUNK_BYTES = 4 << 20
PATIENCE_SECONDS = 3.0  # longer than membership needs to find out that a peer is gone
_PAUSE_SECONDS = 0.2  # before all peers are asked again


class PiecesMissing(Exception):
    """No peer could give these pieces."""


class Interrupted(Exception):
    """Something more important came up; what was fetched so far stays."""


def fetch(
    folder_for: Callable[[int], Path],
    epoch: int,
    step: int,
    pieces: Iterable[Piece],
    holders: Sequence[Member],
    interrupted: Callable[[], bool],
    patience_seconds: float = PATIENCE_SECONDS,
) -> int:
    """Bytes copied, each file into the folder for its holder's slot. Raises PiecesMissing or Interrupted."""
    missing, copied = set(pieces), 0
    deadline = time.monotonic() + patience_seconds
    while True:
        problems: list[str] = []
        for holder in holders:
            if not missing:
                break
            try:
                folder = folder_for(holder.slot)
                folder.mkdir(parents=True, exist_ok=True)
                with contextlib.closing(http.client.HTTPConnection(holder.address, holder.peer_port)) as peer:
                    copied += _take_from(peer, folder, epoch, step, missing, interrupted)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                problems.append(f"slot {holder.slot} at {holder.address}:{holder.peer_port}: {error}")
                logger.warning("fetching from a peer failed: %s", problems[-1])
        if not missing:
            return copied
        if interrupted():
            raise Interrupted
        if time.monotonic() >= deadline:
            asked = "; ".join(problems) or "no holder has them"
            raise PiecesMissing(
                f"pieces {sorted(missing)} of step {step} (epoch {epoch}) cannot be fetched: {asked}"
            )
        time.sleep(_PAUSE_SECONDS)


def _take_from(
    peer: http.client.HTTPConnection,
    folder: Path,
    epoch: int,
    step: int,
    missing: set[Piece],
    interrupted: Callable[[], bool],
) -> int:
    """Take from one peer what is missing; removes from `missing` what arrived."""
    peer.timeout = _CONNECT_SECONDS
    peer.connect()
    peer.sock.settimeout(_STALL_SECONDS)
    copied = 0
    for item in json.loads(_get(peer, f"/snapshots/{epoch}/{step}").read()):
        piece, name, size = tuple(item["piece"]), str(item["name"]), int(item["size"])
        if piece not in missing:
            continue
        if name != os.path.basename(name) or name.startswith("."):  # noqa: PTH119 - a name, not a path
            raise ValueError(f"{name!r} is not a file name")
        with _get(peer, f"/snapshots/{epoch}/{step}/{name}") as body:
            _write(body, folder / name, size, interrupted)
        missing.discard(piece)
        copied += size
    return copied


def _get(peer: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
    peer.request("GET", path)
    response = peer.getresponse()
    if response.status != 200:
        raise OSError(f"GET {path}: HTTP {response.status}")
    return response


def _write(body: http.client.HTTPResponse, path: Path, size: int, interrupted: Callable[[], bool]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    written = 0
    try:
        with partial.open("wb") as file:
            while chunk := body.read(_CHUNK_BYTES):
                if interrupted():
                    raise Interrupted
                written += file.write(chunk)
        if written != size:
            raise OSError(f"{path.name}: {written} bytes arrived, {size} were announced")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
