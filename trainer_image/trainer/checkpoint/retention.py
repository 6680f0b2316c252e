"""Which checkpoints go, and how: manifests are counted, never folders, and the manifest goes first.

Removed in that order, a checkpoint that a kill left half removed does not exist any more. Called by rank 0
around each commit.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from trainer.checkpoint.location import pinned, sync_folder
from trainer.checkpoint.manifest import folders, list_checkpoints
from trainingrun.protocol import names

_TRASH = ".trash-"


def retain(location: Path, keep_last: int | None) -> list[str]:
    """Remove all but the newest `keep_last` checkpoints (None: all stay); names of the removed, oldest first.

    The newest and the pinned always stay; a damaged one is left for a person to look at.
    """
    if keep_last is None:
        return []
    found = [checkpoint.name for checkpoint in list_checkpoints(location)]
    pins = pinned(location)
    removed = [name for name in found[: -max(1, keep_last)] if name not in pins]
    for name in removed:
        (location / name / names.MANIFEST_FILE).unlink(missing_ok=True)
        sync_folder(location / name)
        discard(location / name)
    return removed


def discard(folder: Path) -> None:
    """Remove a folder that has no manifest. It loses its name first, so nobody can commit into what is left
    of it.
    """
    trash = folder.parent / f"{_TRASH}{folder.name}.{secrets.token_hex(4)}"
    try:
        folder.rename(trash)
    except FileNotFoundError:
        return
    shutil.rmtree(trash, ignore_errors=True)


def sweep(location: Path, step: int, epoch: int) -> None:
    """Remove what killed saves and killed removals left, up to this (epoch, step)."""
    for folder in location.glob(f"{_TRASH}*"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in folders(location):
        if (folder / names.MANIFEST_FILE).exists():
            continue
        of_step, of_epoch = (int(part) for part in folder.name.removeprefix("step-").split(".e"))
        if (of_epoch, of_step) <= (epoch, step):
            discard(folder)
