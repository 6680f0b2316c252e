"""Where a new epoch takes its state from: pure, and the rule that must never lose work silently.

The newest of what can be used wins, by (epoch, step): the lineage is the newest epoch's. A memory snapshot
counts when its pieces, over the members that acknowledged, make one whole copy. Fresh weights are allowed
only when no checkpoint was ever committed, by all that we remember and by what stands at the location;
otherwise the answer is `Blocked` and a person must look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from trainingrun.protocol import names
from trainingrun.protocol.messages import DurableCheckpoint, HeldSnapshot
from trainingrun.protocol.records import Epoch, Restore, RestoreSource

Coordinates = tuple[int, int, int]
SHOWN = 3  # names in a message
_MEMORY = "memory:"  # what was damaged in memory says nothing of the location


@dataclass(frozen=True)
class Blocked:
    """There were checkpoints and none can be used; never silently from step 0."""

    reason: str


def memory_name(epoch: int, step: int) -> str:
    """How a memory snapshot that failed its checksums is named among `damaged`."""
    return f"{_MEMORY}{names.checkpoint_dir(step, epoch)}"


def restore_name(record: Epoch) -> str:
    """The name under which the restore point of `record` is marked as damaged; "" for fresh weights."""
    restore = record.restore
    if restore.source is RestoreSource.DURABLE:
        return restore.manifest
    return memory_name(restore.epoch, restore.step) if restore.source is RestoreSource.MEMORY else ""


def choose_restore(
    held: Mapping[int, Sequence[HeldSnapshot]],
    durable: Iterable[DurableCheckpoint],
    damaged: Collection[str],
    ever_known: Collection[str],
    *,
    fresh: bool,
    location: str,
) -> Restore | Blocked:
    """The restore point of a new epoch.

    `held`: snapshots by slot, of the members that acknowledged. `durable`: manifests at the location now.
    `damaged`: names that must not be used. `ever_known`: every durable checkpoint that was ever known.
    `fresh`: every member found that nothing was ever committed at `location`, which is named to people.
    """
    candidates = [*_whole_snapshots(held, damaged), *_durable(durable, damaged)]
    if candidates:
        return max(candidates, key=_newness)
    known_bad = {name for name in damaged if not name.startswith(_MEMORY)}
    if fresh and not ever_known and not known_bad:
        return Restore(RestoreSource.INITIAL)
    missing = set(ever_known) - known_bad
    parts = [f"damaged: {_some(known_bad)}"] if known_bad else []
    parts += [f"not there any more: {_some(missing)}"] if missing else []
    found = f"none can be used ({'; '.join(parts)})" if parts else "none is there any more"
    afresh = "a new run with another location starts afresh"
    fix = f"put back what is missing and the run goes on; {afresh}" if missing or not parts else afresh
    return Blocked(f"NoUsableCheckpoint: checkpoints were committed at {location}, but {found}; hint: {fix}")


def newest_in_memory(held: Mapping[int, Sequence[HeldSnapshot]], damaged: Collection[str]) -> int | None:
    """The step that would be restored from memory if it were needed now."""
    newest = max(_whole_snapshots(held, damaged), key=_newness, default=None)
    return None if newest is None else newest.step


def _newness(restore: Restore) -> tuple[object, ...]:
    in_memory = restore.source is RestoreSource.MEMORY
    return (restore.epoch, restore.step, in_memory, restore.holders, restore.layout, restore.manifest)


def _some(names_: Collection[str]) -> str:
    newest = sorted(names_, reverse=True)
    return ", ".join(newest[:SHOWN]) + (f" and {len(newest) - SHOWN} more" if len(newest) > SHOWN else "")


def _whole_snapshots(
    held: Mapping[int, Sequence[HeldSnapshot]], damaged: Collection[str]
) -> Iterable[Restore]:
    pieces: dict[tuple[int, int, Coordinates], dict[Coordinates, set[int]]] = {}
    for slot, snapshots in held.items():
        for snapshot in snapshots:
            found = pieces.setdefault((snapshot.epoch, snapshot.step, snapshot.layout), {})
            for piece in snapshot.pieces:
                found.setdefault(piece, set()).add(slot)
    for (epoch, step, layout), found in pieces.items():
        if memory_name(epoch, step) in damaged:
            continue
        pipeline, shard, tensor = layout
        grid = list(product(range(pipeline), range(shard), range(tensor)))
        if grid and all(piece in found for piece in grid):
            holders = sorted(set().union(*(found[piece] for piece in grid)))
            yield Restore(RestoreSource.MEMORY, step, epoch, layout=layout, holders=tuple(holders))


def _durable(durable: Iterable[DurableCheckpoint], damaged: Collection[str]) -> Iterable[Restore]:
    for checkpoint in durable:
        if checkpoint.name not in damaged:
            yield Restore(RestoreSource.DURABLE, checkpoint.step, checkpoint.epoch, manifest=checkpoint.name)
