"""The state's ways out of this process: memory snapshots and durable checkpoints of the running epoch.

A snapshot becomes the protected one only once every rank has sealed its part, which the next collective
proves. Called by the train loop at steps that all ranks agreed on.
"""

from __future__ import annotations

import logging
import math
import platform

import torch
import torch.distributed as dist
import transformers

from trainer.checkpoint import durable, manifest
from trainer.checkpoint.manifest import Manifest
from trainer.checkpoint.snapshot import SnapshotWriter
from trainer.config import TrainerConfig
from trainer.job import RankJob
from trainer.mesh import Axes
from trainer.state import TrainingState
from trainingrun.protocol import wire
from trainingrun.protocol.names import MANIFEST_FILE

log = logging.getLogger(__name__)


class SnapshotKeeper:
    """Snapshots of this rank; `on` is False when they are switched off."""

    def __init__(self, job: RankJob, local_rank: int, axes: Axes, state: TrainingState, *, on: bool) -> None:
        self.on = on
        self.seconds = 0.0  # of the newest snapshot, until the next step has carried it to the others
        self._state = state
        self._epoch = job.record.epoch
        self._unprotected: int | None = None
        if on:
            self._writer = SnapshotWriter(
                job.snapshot_dir,
                epoch=job.record.epoch,
                local_rank=local_rank,
                layout=job.record.rung.layout,
                piece=axes.piece,
                tensors=state.tensors(),
            )

    def take(self) -> float:
        """Write the state as it is now; seconds."""
        self.seconds = self._writer.write(self._state.step, self._state.scalars())
        self._unprotected = self._state.step
        return self.seconds

    def everyone_passed(self) -> None:
        """A collective after the newest snapshot is over, so all ranks have sealed theirs."""
        self.seconds = 0.0
        if self._unprotected is not None:
            self._writer.protect(self._epoch, self._unprotected)
            self._unprotected = None


class DurableKeeper:
    """Durable checkpoints of all ranks together."""

    def __init__(
        self, job: RankJob, config: TrainerConfig, axes: Axes, state: TrainingState, parent: str
    ) -> None:
        self._job = job
        self._config = config
        self._axes = axes
        self._state = state
        self.newest = parent

    def fence(self) -> None:
        """Before anything else in an epoch that shares no member with the one before."""
        if not self._job.record.shares_member and self._axes.rank == 0:
            durable.write_fence(self._config.checkpoint.location, self._job.record.epoch)

    def seconds_since_saved(self, now: float) -> float:
        """Since the newest checkpoint was committed; `now` in seconds since 1970. Infinite when earlier epochs
        trained and none of them saved.
        """
        location = self._config.checkpoint.location
        newest = manifest.newest(location)
        if newest is None:
            return 0.0 if self._job.record.epoch == 1 else math.inf
        return max(0.0, now - (location / newest.name / MANIFEST_FILE).stat().st_mtime)

    def save(self) -> str:
        """Collective; the checkpoint's name."""
        record = self._job.record
        self.newest = durable.save(
            self._config.checkpoint.location,
            step=self._state.step,
            epoch=record.epoch,
            tensors=self._state.tensors(),
            scalars=self._state.scalars(),
            parent=self.newest,
            run_uid=self._job.run_uid,
            keep_last=self._config.checkpoint.keep_last,
            plan=wire.to_json(record.rung),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        )
        log.info("step %d: saved %s", self._state.step, self.newest)
        return self.newest

    def existing(self) -> str:
        """Collective: this run's checkpoint of the current step, "" when there is none."""
        found = [""]
        if self._axes.rank == 0:
            found = [self._find()]
        if self._axes.world > 1:
            dist.broadcast_object_list(found, src=0)
        return found[0]

    def _find(self) -> str:
        location = self._config.checkpoint.location
        newest = manifest.newest(location)
        if newest is None or newest.step != self._state.step or newest.name in self._job.record.damaged:
            return ""
        return newest.name if Manifest.read(location / newest.name).run_uid == self._job.run_uid else ""
