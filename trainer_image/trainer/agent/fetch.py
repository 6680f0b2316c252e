"""Copies the pieces of a snapshot that this node lacks from peers that hold it, before its ranks start.

A peer that fails is passed over for the next one. A file appears under its name only when all of it is there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trainer.agent.pieces import Piece
from trainingrun.protocol.records import Member

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 2.0
_STALL_SECONDS = 10.0
_CHUNK_BYTES = 4 << 20


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
) -> int:
    """Bytes copied, each file into the folder for its holder's slot. Raises PiecesMissing or Interrupted."""
    missing, copied, problems = set(pieces), 0, []
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
    if missing:
        asked = "; ".join(problems) or "no holder has them"
        raise PiecesMissing(
            f"pieces {sorted(missing)} of step {step} (epoch {epoch}) cannot be fetched: {asked}"
        )
    return copied


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
