"""A durable checkpoint exists if and only if its manifest exists and is whole; this reads and writes
manifests at a location.

What a manifest says is the format's business (`trainingrun.protocol.checkpoints`). Called by agents (what can be
restored, whose is the location), by ranks, and by the export. No torch, and never the pickle beside it.
"""

from __future__ import annotations

import functools

from trainer.checkpoint.errors import CheckpointDamaged, LocationTaken
from trainer.checkpoint.location import Owner, add_owner, owners
from trainer.checkpoint.store import Place, Store, as_store
from trainingrun.protocol import names
from trainingrun.protocol.checkpoints import (
    COMMITTED_FILE,
    FOLDER,
    Item,
    Manifest,
    ManifestDamaged,
    in_order,
    parse,
)
from trainingrun.protocol.messages import DurableCheckpoint

__all__ = [
    "Item",
    "LocationTaken",
    "Manifest",
    "claim",
    "commit",
    "damaged_manifests",
    "exists",
    "list_checkpoints",
    "location_fresh",
    "manifest_of",
    "newest",
    "read_manifest",
]


def manifest_of(name: str) -> str:
    return f"{name}/{names.MANIFEST_FILE}"


def read_manifest(location: Place, name: str) -> Manifest:
    """The manifest of a checkpoint, verified. Raises CheckpointDamaged, FileNotFoundError."""
    return _parse(as_store(location), name)


def commit(location: Place, manifest: Manifest) -> bool:
    """Create the manifest; False when there is one already. All files must be durable before."""
    store = as_store(location)
    if not store.create(manifest_of(manifest.name), manifest.text()):
        return False
    store.create(COMMITTED_FILE, manifest.name.encode())
    return True


def exists(location: Place, name: str) -> bool:
    """Whether there is a manifest, whole or not."""
    try:
        as_store(location).stat(manifest_of(name))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@functools.lru_cache(maxsize=64)
def _parse_once(store: Store, name: str, _version: str) -> Manifest:
    """For listings: agents look often, and manifests never change."""
    return _parse(store, name)


def _parse(store: Store, name: str) -> Manifest:
    try:
        return parse(store.read(manifest_of(name)), name)
    except (ManifestDamaged, IsADirectoryError) as error:
        raise CheckpointDamaged(name, store.where(manifest_of(name)), "", str(error)) from error


def folders(location: Place) -> list[str]:
    """Folders that are named like checkpoints, with a manifest or without."""
    return [name for name in as_store(location).names() if FOLDER.match(name)]


def _scan(location: Place) -> tuple[list[Manifest], list[str]]:
    """(whole manifests, oldest first; names of damaged ones)."""
    store = as_store(location)
    whole, damaged = [], []
    for name in folders(store):
        try:
            whole.append(_parse_once(store, name, store.stat(manifest_of(name)).version))
        except (FileNotFoundError, NotADirectoryError):  # a file may be named like a checkpoint
            continue
        except CheckpointDamaged:
            damaged.append(name)
    return in_order(whole, {number: owner.run_uid for number, owner in enumerate(owners(store))}), damaged


def list_checkpoints(location: Place) -> list[DurableCheckpoint]:
    """Checkpoints whose manifest is whole, the newest last. Their data is verified when it is read."""
    return [
        DurableCheckpoint(manifest.name, manifest.epoch, manifest.step) for manifest in _scan(location)[0]
    ]


def damaged_manifests(location: Place) -> list[str]:
    """Names of checkpoints whose manifest is there but not whole."""
    return _scan(location)[1]


def newest(location: Place) -> DurableCheckpoint | None:
    found = list_checkpoints(location)
    return found[-1] if found else None


def location_fresh(location: Place) -> bool:
    """Whether no checkpoint was ever committed here, not even one that is damaged or gone now."""
    store = as_store(location)
    if COMMITTED_FILE in store.names():
        return False
    return not any(exists(store, name) for name in folders(store))


def claim(location: Place, run_uid: str, run_name: str, adopt: bool) -> None:
    """Make the location this run's, once; calling it again changes nothing.

    Raises LocationTaken when it is another run's and `adopt` is False. Adoption is for good: the run before
    may not save here any more.
    """
    store = as_store(location)
    store.make_folder()
    while True:
        present = owners(store)
        if not present:
            present = [
                Owner(uid, "unknown") for uid in sorted({m.run_uid for m in _scan(store)[0]} - {run_uid})
            ]
            number = 1
        else:
            if present[-1].run_uid == run_uid:
                return
            number = len(present) + 1
        if present and not adopt:
            raise LocationTaken(store.uri, present[-1].run_name, present[-1].run_uid, run_name)
        if add_owner(store, Owner(run_uid, run_name), number):
            return
