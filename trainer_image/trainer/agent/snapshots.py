"""The snapshot files of this node: those that its ranks wrote, and those that were fetched from peers, for its ranks
or to keep them.

The agent reads headers and moves whole files; the tensors in them are the ranks' business. Fetched files
count as held: they survive the ranks for which they were fetched.
"""

from __future__ import annotations

from pathlib import Path

from trainer.agent.pieces import Piece
from trainer.checkpoint import snapshot_format as form
from trainingrun.protocol.messages import HeldSnapshot
from trainingrun.protocol.records import Restore, RestoreSource, SnapshotId


class Snapshots:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def held(self) -> tuple[HeldSnapshot, ...]:
        """Sealed snapshots, the oldest first."""
        return tuple(form.held(self.folder))

    def files_of(self, epoch: int, step: int) -> dict[Piece, Path]:
        found = {}
        for path in form.files_of(self.folder, epoch, step):
            if header := form.read_header(path):
                found[header.piece] = path
        return found

    @property
    def fetched(self) -> Path:
        """Where pieces from peers go."""
        return self.folder / form.FETCHED

    @property
    def buddies(self) -> Path:
        """Where the pieces of another node are kept."""
        return self.folder / form.BUDDIES

    def prune(self, restore: Restore, *, buddies: bool = False) -> None:
        """Drop what the run will not go back to, before ranks start from `restore` and need memory of their
        own.

        What stays is the restore point and, in case it turns out to be damaged, the newest snapshot that is
        here. Where `buddies` are to be kept too there is no memory for what is newer than a restore point in memory:
        it was not whole, or it would be that itself.
        """
        in_memory = restore.source is RestoreSource.MEMORY
        keep = {SnapshotId(restore.epoch, restore.step)} if in_memory else set()
        if not (in_memory and buddies):
            keep |= {SnapshotId(snapshot.epoch, snapshot.step) for snapshot in self.held()[-1:]}
        form.prune(self.folder, keep)
