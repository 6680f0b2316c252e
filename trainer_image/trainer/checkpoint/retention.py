"""Which checkpoints go, and how: manifests are counted, never folders, and the manifest goes first.

Removed in that order, a checkpoint that a kill left half removed does not exist any more. Called by rank 0
around each commit.
"""

from __future__ import annotations

from trainer.checkpoint.location import pinned
from trainer.checkpoint.manifest import exists, folders, list_checkpoints, manifest_of
from trainer.checkpoint.store import Place, as_store
from trainingrun.protocol.checkpoints import FOLDER, step_and_epoch


def retain(location: Place, keep_last: int | None) -> list[str]:
    """Remove all but the newest `keep_last` checkpoints (None: all stay); names of the removed, oldest first.

    The newest and the pinned always stay; a damaged one is left for a person to look at.
    """
    if keep_last is None:
        return []
    store = as_store(location)
    found = [checkpoint.name for checkpoint in list_checkpoints(store)]
    pins = pinned(store)
    removed = [name for name in found[: -max(1, keep_last)] if name not in pins]
    for name in removed:
        store.remove(manifest_of(name))
        discard(store, name)
    return removed


def discard(location: Place, name: str) -> None:
    """Remove a checkpoint's folder that has no manifest."""
    as_store(location).discard(name)


def sweep(location: Place, step: int, epoch: int) -> None:
    """Remove what killed saves and killed removals left, up to this (epoch, step)."""
    store = as_store(location)
    store.sweep()
    for name in (*folders(store), *filter(FOLDER.match, store.begun())):
        of_step, of_epoch = step_and_epoch(name) or (0, 0)
        if (of_epoch, of_step) <= (epoch, step) and not exists(store, name):
            discard(store, name)
