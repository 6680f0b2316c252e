"""Durable checkpoints: DCP files by all ranks, then the manifest by rank 0, which makes them a checkpoint.

Order is everything: the folder is new, every file is on disk before the manifest names it, the manifest is
created once or not at all, and only then are old checkpoints removed. Whatever fails leaves the checkpoints
before as they were. Called by the train loop, on every rank of the group at the same step.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from trainer.checkpoint.errors import CheckpointDamaged, Fenced, SaveFailed
from trainer.checkpoint.location import newest_fence, owners, sync_folder, write_fence
from trainer.checkpoint.manifest import Item, Manifest
from trainer.checkpoint.retention import discard, retain, sweep
from trainer.checkpoint.writer import HashingWriter
from trainingrun.protocol import names

_LOG = logging.getLogger(__name__)

__all__ = ["Fenced", "SaveFailed", "save", "write_fence"]


def save(
    location: Path,
    *,
    step: int,
    epoch: int,
    tensors: Mapping[str, torch.Tensor],
    scalars: dict[str, Any],
    parent: str,
    run_uid: str,
    keep_last: int | None,
    group: dist.ProcessGroup | None = None,
    plan: dict[str, Any],
    versions: dict[str, str],
) -> str:
    """Save and commit; the checkpoint's name. Collective over `group` (default: all ranks; needs a CPU
    backend).

    `scalars` are rank 0's. A checkpoint of this step and epoch that is committed already is left as it is.
    Raises SaveFailed or Fenced, the same on every rank.
    """
    name = names.checkpoint_dir(step, epoch)
    folder = location / name
    team = _Team(name, group)
    if not team.from_first(lambda: _begin(location, name, step, epoch, run_uid)):
        return name
    writer = HashingWriter(folder)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group, no_dist=not team.distributed)
    except CheckpointException as error:  # derives from BaseException
        team.from_first(lambda: discard(folder))
        raise _as_save_failed(name, error) from error
    parts = team.gather((writer.items, writer.sizes))

    def commit() -> None:
        manifest = _manifest(name, step, epoch, run_uid, parent, scalars, plan, versions, parts)
        _commit(location, manifest)
        try:
            retain(location, keep_last)
        except OSError as error:  # the checkpoint is there; old ones that stay cost space only
            _LOG.warning("old checkpoints at %s were not removed: %s", location, error)

    team.from_first(commit)
    return name


def _begin(location: Path, name: str, step: int, epoch: int, run_uid: str) -> bool:
    """Make room for the checkpoint; False when it is there already."""
    location.mkdir(parents=True, exist_ok=True)
    _check_fence(location, name, epoch, run_uid)
    try:
        existing = Manifest.read(location / name)
    except FileNotFoundError:
        sweep(location, step, epoch)
        (location / name).mkdir()
        sync_folder(location)
        return True
    if existing.run_uid != run_uid:
        raise SaveFailed(name, f"it is there already, made by run {existing.run_uid}", errno.EEXIST)
    return False


def _check_fence(location: Path, name: str, epoch: int, run_uid: str) -> None:
    fence = newest_fence(location, run_uid)
    if epoch < fence:
        raise Fenced(name, f"epoch {epoch} is below the fence of epoch {fence}")
    present = owners(location)
    if present and present[-1].run_uid != run_uid:
        raise Fenced(name, f"the location now belongs to {present[-1]}")


def _manifest(
    name: str,
    step: int,
    epoch: int,
    run_uid: str,
    parent: str,
    scalars: dict[str, Any],
    plan: dict[str, Any],
    versions: dict[str, str],
    parts: list[tuple[list[Item], dict[str, int]]],
) -> Manifest:
    items = sorted((item for part, _ in parts for item in part), key=lambda item: (item.name, item.offsets))
    files = {file: size for _, sizes in parts for file, size in sizes.items()}
    return Manifest(name, step, epoch, run_uid, parent, scalars, plan, versions, tuple(items), files)


def _commit(location: Path, manifest: Manifest) -> None:
    folder = location / manifest.name
    sync_folder(folder)
    _check_fence(location, manifest.name, manifest.epoch, manifest.run_uid)
    if not manifest.commit(location):
        raise SaveFailed(manifest.name, "another writer has committed it", errno.EEXIST)
    try:
        # A fence that was written between the check and the commit: the newer epoch may not have seen us.
        _check_fence(location, manifest.name, manifest.epoch, manifest.run_uid)
    except Fenced:
        (folder / names.MANIFEST_FILE).unlink()
        sync_folder(folder)
        raise


def _as_save_failed(name: str, error: CheckpointException) -> SaveFailed:
    rank, (cause, _) = sorted(error.failures.items())[0]
    if isinstance(cause, OSError):
        return _storage_failure(name, cause, f"rank {rank}: ")
    return SaveFailed(name, f"rank {rank}: {type(cause).__name__}: {cause}")


def _storage_failure(name: str, error: OSError, where: str = "") -> SaveFailed:
    file = f"{error.filename}: " if error.filename else ""
    return SaveFailed(name, f"{where}{file}{error.strerror or error}", error.errno or 0)


class _Team:
    """The ranks that save the checkpoint `name` together; one process alone needs no torch.distributed."""

    def __init__(self, name: str, group: dist.ProcessGroup | None) -> None:
        self.name = name
        self.distributed = dist.is_available() and dist.is_initialized()
        self.group = group
        self.first = not self.distributed or dist.get_rank(group) == 0

    def from_first(self, action: Callable[[], bool | None]) -> bool | None:
        """What `action` gives on the first rank, on all ranks; its failure is raised on all of them."""
        outcome: list[Any] = [None, None]
        if self.first:
            try:
                outcome[0] = action()
            except (SaveFailed, Fenced) as error:
                outcome[1] = error
            except CheckpointDamaged as error:
                outcome[1] = SaveFailed(self.name, str(error), errno.EEXIST)
            except OSError as error:
                outcome[1] = _storage_failure(self.name, error)
        if self.distributed:
            dist.broadcast_object_list(outcome, group=self.group, group_src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value on the first rank; elsewhere nothing."""
        if not self.distributed:
            return [value]
        found: list[Any] | None = [None] * dist.get_world_size(self.group) if self.first else None
        dist.gather_object(value, found, group=self.group, group_dst=0)
        return found or []
