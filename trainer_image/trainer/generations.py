"""Which snapshot is being copied to buddies, and which one every node has with its buddy's. Pure.

A generation is a snapshot that all ranks have sealed. Each node then copies its buddy's part of it in the background,
and tells by a vote in the step's all-reduce how that ended; so all ranks learn at the same step that a generation is
complete. Until then the complete one before it is kept, by its owners and their buddies, and no snapshot is taken
but for a pause: so two buffers are enough, and copying sets its own pace. A copy that failed is given up, and the
next snapshot tries it again. One object a rank; called by its snapshot keeper.
"""

from __future__ import annotations

from trainingrun.protocol.records import SnapshotId


class Generations:
    def __init__(self, nodes: int, restored: SnapshotId | None) -> None:
        """`restored`: the snapshot that all nodes hold their parts of, from which these ranks start."""
        self._nodes = nodes
        self._sealing = restored  # every rank has it once the next collective is over
        self.copying: SnapshotId | None = None
        self.kept = restored  # what must not be dropped: complete, or all that there is

    @property
    def ready(self) -> bool:
        """Whether a snapshot may be taken: none is on its way to the buddies."""
        return self._sealing is None and self.copying is None

    def taken(self, snapshot: SnapshotId) -> None:
        """This rank has sealed it. Whatever was being copied is written over (only a pause does not wait)."""
        self._sealing, self.copying = snapshot, None

    def answered(self, copied: int, failed: int) -> SnapshotId | None:
        """So many nodes say that they have their buddy's part of `copying`, or that they cannot get it. The
        generation when it is complete with that.
        """
        done = self.copying
        if done is None or copied + failed < self._nodes:
            return None
        self.copying = None
        if failed:
            return None
        self.kept = done
        return done

    def passed(self) -> SnapshotId | None:
        """A collective is over: what is to be copied from now on, told once."""
        begun, self._sealing = self._sealing, None
        if begun is not None:
            self.copying = begun
        return begun
