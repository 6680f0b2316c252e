"""Durable checkpoints: DCP files by all ranks, then the manifest by rank 0, which makes them a checkpoint.

Order is everything: the folder is new, every file is on disk before the manifest names it, the manifest is
created once or not at all, and only then are old checkpoints removed. Whatever fails leaves the checkpoints
before as they were. Called by the train loop, on every rank of the group at the same step.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from trainer.checkpoint.about import AboutModel
from trainer.checkpoint.errors import CheckpointDamaged, Fenced, SaveFailed
from trainer.checkpoint.location import newest_fence, owners, write_fence
from trainer.checkpoint.manifest import Manifest, commit, manifest_of, read_manifest
from trainer.checkpoint.retention import discard, retain, sweep
from trainer.checkpoint.store import Place, Store, as_store
from trainer.checkpoint.writer import HashingWriter
from trainingrun.protocol import names

_LOG = logging.getLogger(__name__)

__all__ = ["Fenced", "SaveFailed", "save", "write_fence"]


def save(
    location: Place,
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
    about: AboutModel | None = None,
) -> str:
    """Save and commit; the checkpoint's name. Collective over `group` (default: all ranks; needs a CPU
    backend).

    `scalars` and `about` are rank 0's. A checkpoint of this step and epoch that is committed already is left as it is.
    Raises SaveFailed or Fenced, the same on every rank.
    """
    name = names.checkpoint_dir(step, epoch)
    store = as_store(location)
    team = _Team(name, group)
    if not team.from_first(lambda: _begin(store, name, step, epoch, run_uid)):
        return name
    writer = HashingWriter(store, name)
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group, no_dist=not team.distributed)
    except CheckpointException as error:  # derives from BaseException
        team.from_first(lambda: discard(store, name))
        raise _as_save_failed(name, error) from error
    parts = team.gather((writer.items, writer.sizes, writer.sums))

    def finish() -> None:
        items = sorted((one for part in parts for one in part[0]), key=lambda one: (one.name, one.offsets))
        files = {file: size for part in parts for file, size in part[1].items()}
        sums = {file: hashes for part in parts for file, hashes in part[2].items()}
        model = about.put(store) if about else {}
        manifest = Manifest(
            name, step, epoch, run_uid, parent, scalars, plan, versions, tuple(items), files, model, sums
        )
        _commit(store, manifest)
        try:
            retain(store, keep_last)
        except OSError as error:  # the checkpoint is there; old ones that stay cost space only
            _LOG.warning("old checkpoints at %s were not removed: %s", store.uri, error)

    team.from_first(finish)
    return name


def _begin(store: Store, name: str, step: int, epoch: int, run_uid: str) -> bool:
    """Make room for the checkpoint; False when it is there already."""
    store.make_folder()
    _check_fence(store, name, epoch, run_uid)
    try:
        existing = read_manifest(store, name)
    except FileNotFoundError:
        sweep(store, step, epoch)
        store.make_folder(name, new=True)
        return True
    if existing.run_uid != run_uid:
        raise SaveFailed(name, f"it is there already, made by run {existing.run_uid}", errno.EEXIST)
    return False


def _check_fence(store: Store, name: str, epoch: int, run_uid: str) -> None:
    fence = newest_fence(store, run_uid)
    if epoch < fence:
        raise Fenced(name, f"epoch {epoch} is below the fence of epoch {fence}")
    present = owners(store)
    if present and present[-1].run_uid != run_uid:
        raise Fenced(name, f"the location now belongs to {present[-1]}")


def _commit(store: Store, manifest: Manifest) -> None:
    store.settle(manifest.name)
    _check_fence(store, manifest.name, manifest.epoch, manifest.run_uid)
    if not commit(store, manifest):
        raise SaveFailed(manifest.name, "another writer has committed it", errno.EEXIST)
    try:
        # A fence that was written between the check and the commit: the newer epoch may not have seen us.
        _check_fence(store, manifest.name, manifest.epoch, manifest.run_uid)
    except Fenced:
        store.remove(manifest_of(manifest.name))
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
