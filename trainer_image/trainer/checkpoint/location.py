"""Files at a checkpoint location that are not checkpoints: owners, fences, pins, and the mark of a first
commit.

Everything here is created once and never changed, so two writers cannot both succeed. Called by `manifest`,
`durable` and `retention`. No torch.
"""

from __future__ import annotations

import errno
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.store import Place, Store, as_store
from trainer.errors import ConfigError
from trainer.uris import NotAPath, local_path
from trainingrun.protocol import names
from trainingrun.protocol.checkpoints import FENCE, PINS_FOLDER, owner_number


def path_of(uri: str, field: str) -> Path:
    """Folder of a `file://` or `pvc://` URI. Raises ConfigError for any other; `field` of the spec names it."""
    try:
        return local_path(uri)
    except NotAPath as error:
        raise ConfigError(field, uri, error.problem, error.fix) from error


@dataclass(frozen=True)
class Owner:
    run_uid: str
    run_name: str

    def __str__(self) -> str:
        return f"run {self.run_name} ({self.run_uid})"


def owners(location: Place) -> list[Owner]:
    """Runs that have owned the location, the present owner last. Each adoption adds a file."""
    store = as_store(location)
    found: dict[int, Owner] = {}
    for name in store.names():
        if number := owner_number(name):
            data = _read_mark(store, name, "runUid", "runName")
            found[number] = Owner(data["runUid"], data["runName"])
    return [found[number] for number in sorted(found)]


def add_owner(location: Place, owner: Owner, number: int) -> bool:
    """Create the file of the `number`-th owner (from 1); False when another was faster."""
    name = names.OWNER_FILE if number == 1 else f"owner.{number:04d}.json"
    content = json.dumps({"runUid": owner.run_uid, "runName": owner.run_name})
    return as_store(location).create(name, content.encode())


def write_fence(location: Place, epoch: int) -> None:
    """From now on no manifest of an epoch below `epoch` is committed here. Writing it again changes
    nothing.
    """
    store = as_store(location)
    store.make_folder()
    present = owners(store)
    content = {"epoch": epoch, "runUid": present[-1].run_uid if present else ""}
    store.create(names.fence_name(epoch), json.dumps(content).encode())


def newest_fence(location: Place, run_uid: str) -> int:
    """The highest fenced epoch of this run, or 0. An earlier owner's fences do not bind the one that
    adopted.
    """
    store = as_store(location)
    epochs = [0]
    for name in store.names():
        if match := FENCE.match(name):
            written_for = _read_mark(store, name, "runUid")["runUid"]
            if written_for in ("", run_uid):
                epochs.append(int(match[1]))
    return max(epochs)


def _read_mark(store: Store, name: str, *keys: str) -> dict[str, str]:
    """Raises OSError when it is not what was written: then nobody can tell who may save here."""
    try:
        data: Any = json.loads(store.read(name))
        return {key: str(data[key]) for key in keys}
    except (ValueError, KeyError, TypeError) as error:
        problem = "is damaged: put it back as it was, or remove it"
        raise OSError(errno.EBADMSG, problem, store.where(name)) from error


def pinned(location: Place) -> set[str]:
    """Names of checkpoints that retention must keep: the files in `pins/`."""
    return set(as_store(location).names(PINS_FOLDER))
