"""Files at a checkpoint location that are not checkpoints: owners, fences, pins, and the mark of a first
commit.

Everything here is created once and never changed, so two writers cannot both succeed. Called by `manifest`,
`durable` and `retention`. No torch.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError
from trainer.uris import NotAPath, local_path, uri_of
from trainingrun.protocol import names

COMMITTED_FILE = "committed"  # a checkpoint was committed here once: an empty location is not a fresh one
PINS_FOLDER = "pins"
_FOR_GOOD = frozenset(  # trying again does not help; everything else may be a file system that is away
    {
        errno.EACCES,
        errno.EEXIST,
        errno.EINVAL,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)
_FENCE = re.compile(r"^fence-e(\d+)$")
_OWNER = re.compile(r"^owner(?:\.(\d+))?\.json$")


def path_of(uri: str, field: str = "spec.checkpoint.location.uri") -> Path:
    """Folder of a `file://` or `pvc://` URI. Raises ConfigError for any other; `field` of the spec names it."""
    try:
        return local_path(uri)
    except NotAPath as error:
        raise ConfigError(field, uri, error.problem, error.fix) from error


def open_folder(field: str, folder: Path) -> None:
    """Make `folder`, and prove that files can be made in it. `field` of the spec names it.

    Raises ConfigError where that can never work, and OSError where it may work later.
    """
    probe = folder / f".probe.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        if error.errno not in _FOR_GOOD:
            raise
        raise ConfigError(
            field,
            uri_of(folder),
            f"not a folder that can be written to: {error.strerror}",
            "use one that every node may write to",
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_only(path: Path, content: bytes) -> bool:
    """Write `path` whole and durable, or return False when it exists already. Never seen half written."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


@dataclass(frozen=True)
class Owner:
    run_uid: str
    run_name: str

    def __str__(self) -> str:
        return f"run {self.run_name} ({self.run_uid})"


def owners(location: Path) -> list[Owner]:
    """Runs that have owned the location, the present owner last. Each adoption adds a file."""
    found: dict[int, Owner] = {}
    for name in _names(location):
        if match := _OWNER.match(name):
            data: dict[str, Any] = json.loads((location / name).read_text())
            found[int(match[1] or 1)] = Owner(data["runUid"], data["runName"])
    return [found[number] for number in sorted(found)]


def add_owner(location: Path, owner: Owner, number: int) -> bool:
    """Create the file of the `number`-th owner (from 1); False when another was faster."""
    name = names.OWNER_FILE if number == 1 else f"owner.{number:04d}.json"
    content = json.dumps({"runUid": owner.run_uid, "runName": owner.run_name})
    return create_only(location / name, content.encode())


def write_fence(location: Path, epoch: int) -> None:
    """From now on no manifest of an epoch below `epoch` is committed here. Writing it again changes
    nothing.
    """
    location.mkdir(parents=True, exist_ok=True)
    present = owners(location)
    content = {"epoch": epoch, "runUid": present[-1].run_uid if present else ""}
    create_only(location / names.fence_name(epoch), json.dumps(content).encode())


def newest_fence(location: Path, run_uid: str) -> int:
    """The highest fenced epoch of this run, or 0. An earlier owner's fences do not bind the one that
    adopted.
    """
    epochs = [0]
    for name in _names(location):
        if match := _FENCE.match(name):
            written_for = json.loads((location / name).read_text())["runUid"]
            if written_for in ("", run_uid):
                epochs.append(int(match[1]))
    return max(epochs)


def pinned(location: Path) -> set[str]:
    """Names of checkpoints that retention must keep: the files in `pins/`."""
    return set(_names(location / PINS_FOLDER))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return []
