"""What a checkpoint location on this machine holds, read without torch: JSON manifests, and the bytes that they name.

It changes nothing but by `remove`. Called by the `checkpoint` commands.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

from trainingrun.api.errors import CliExit, UserError
from trainingrun.protocol import names
from trainingrun.protocol.checkpoints import (
    PINS_FOLDER,
    TRASH,
    Item,
    Manifest,
    ManifestDamaged,
    in_order,
    owner_number,
    parse,
    step_and_epoch,
)

_BLOCK = 8 << 20
EXPORT_SOURCE_FILE = "source.json"  # the exporter's mark: which run the model is of


class Unreadable(UserError):
    """The place that was named cannot be read, or not by this command."""

    exit_code = CliExit.BAD_INPUT


class State(StrEnum):
    WHOLE = "Whole"  # the manifest is; what it names is looked at by `verify` only
    DAMAGED = "Damaged"  # the manifest is there, but is not the one that was written
    UNFINISHED = "Unfinished"  # no manifest: a save that did not end, or is going on


@dataclass(frozen=True)
class Found:
    """A folder that is named like a checkpoint."""

    name: str
    step: int
    epoch: int
    state: State
    pinned: bool
    manifest: Manifest | None  # of a whole one
    saved_at: float  # when the manifest was written; 0.0 without one
    problem: str = ""


@dataclass(frozen=True)
class Contents:
    """Everything at a location, oldest first: what is no checkpoint, then the checkpoints in order."""

    location: Path
    found: tuple[Found, ...]
    owner: str  # name of the run that may write here; "" for none

    @property
    def newest(self) -> Found | None:
        whole = [one for one in self.found if one.state is State.WHOLE]
        return whole[-1] if whole else None


def look(location: Path) -> Contents:
    """Raises Unreadable."""
    try:
        entries = sorted(path.name for path in location.iterdir())
        owners = {number: _owner(location / name) for name in entries if (number := owner_number(name))}
        pins = _pins(location)
        found = [_found(location, name, name in pins) for name in entries if step_and_epoch(name)]
    except OSError as error:
        raise Unreadable(
            f"{error.filename or location}: {error.strerror}\n  hint: name the folder that spec.checkpoint.location "
            "names, or the run's manifest"
        ) from None
    whole = {one.manifest.name: one for one in found if one.manifest is not None}
    ordered = in_order(
        (one.manifest for one in whole.values() if one.manifest is not None),
        {number: uid for number, (uid, _) in owners.items()},
    )
    others = [one for one in found if one.name not in whole]
    owner = owners[max(owners)][1] if owners else ""
    return Contents(location, (*others, *(whole[manifest.name] for manifest in ordered)), owner)


def _owner(file: Path) -> tuple[str, str]:
    """(uid, name) of a run."""
    try:
        content = json.loads(file.read_bytes())
        return str(content["runUid"]), str(content["runName"])
    except (ValueError, KeyError, TypeError):
        raise Unreadable(f"{file}: does not say whose the checkpoints are\n  hint: put it back") from None


def exported_by(folder: Path) -> str | None:
    """The uid of the run whose exported model `folder` is; None when it is no exported model."""
    try:
        content = json.loads((folder / EXPORT_SOURCE_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return str(content.get("runUid", "")) if isinstance(content, dict) else None


def _pins(location: Path) -> set[str]:
    folder = location / PINS_FOLDER
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def _found(location: Path, name: str, pinned: bool) -> Found:
    step, epoch = step_and_epoch(name) or (0, 0)
    file = location / name / names.MANIFEST_FILE
    try:
        text, saved_at = file.read_bytes(), file.stat().st_mtime
    except FileNotFoundError:
        return Found(name, step, epoch, State.UNFINISHED, pinned, None, 0.0, "it has no manifest")
    try:
        manifest = parse(text, name)
    except ManifestDamaged as error:
        return Found(name, step, epoch, State.DAMAGED, pinned, None, saved_at, f"{file.name}: {error}")
    return Found(name, step, epoch, State.WHOLE, pinned, manifest, saved_at)


def problems(location: Path, manifest: Manifest) -> Iterator[str]:
    """Everything that is not as the manifest says, in the order of the files; each byte of each file is read."""
    for file, size in sorted(manifest.files.items()):
        yield from _problems_of(location / manifest.name / file, size, manifest)


def _problems_of(path: Path, size: int, manifest: Manifest) -> Iterator[str]:
    items = [item for item in manifest.items if item.file == path.name]
    damaged: dict[str, str] = {}  # item -> what is wrong, each once
    try:
        with path.open("rb") as opened:
            actual = os.fstat(opened.fileno()).st_size
            if actual != size:
                yield f"{path.name}: {actual} bytes, but {size} were written"
            for start, end, expected in manifest.hashed(path.name):
                found = _digest(opened, start, end)
                if found != expected:
                    problem = "its sha256 does not match the manifest" if found else "the file ends within it"
                    damaged |= {name: problem for name in _within(items, start, end) if name not in damaged}
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        yield f"{path.name}: " + ("is gone" if gone else f"cannot be read: {error.strerror}")
    for name, problem in damaged.items():
        yield f"{path.name}: {name}: {problem}"


def _digest(opened: IO[bytes], start: int, end: int) -> str:
    """The sha256 of those bytes; "" when the file ends before."""
    opened.seek(start)
    digest, left = hashlib.sha256(), end - start
    while left and (block := opened.read(min(_BLOCK, left))):
        digest.update(block)
        left -= len(block)
    return "" if left else digest.hexdigest()


def _within(items: list[Item], start: int, end: int) -> list[str]:
    """The items that have bytes there; the end of the file may have none."""
    return [
        item.name for item in items if item.byte_offset < end and item.byte_offset + item.byte_length > start
    ] or [f"bytes {start} to {end}"]


def remove(location: Path, name: str) -> None:
    """The manifest goes first: cut off anywhere, what is left is no checkpoint. Raises Unreadable."""
    folder = location / name
    trash = location / f"{TRASH}{name}.{secrets.token_hex(4)}"
    try:
        (folder / names.MANIFEST_FILE).unlink(missing_ok=True)
        _sync(folder)
        folder.rename(trash)
        shutil.rmtree(trash)
    except OSError as error:
        raise Unreadable(
            f"{error.filename or folder}: {error.strerror}\n  hint: who may write there?"
        ) from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
