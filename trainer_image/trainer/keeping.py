"""The state's ways out of this process: memory snapshots and durable checkpoints of the running epoch.

A snapshot becomes the protected one only once every rank has sealed its part, which the next collective
proves; where nodes keep each other's snapshots, once every node has its buddy's (`generations`). A durable
checkpoint costs the step a copy in host memory; the rest happens in one background thread of each rank, which talk
to each other over a group of their own. Called by the train loop at steps that all ranks agreed on.
"""

from __future__ import annotations

import datetime
import logging
import math
import platform
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import transformers

from trainer.checkpoint import durable, manifest
from trainer.checkpoint.about import AboutModel
from trainer.checkpoint.manifest import manifest_of, read_manifest
from trainer.checkpoint.snapshot import SnapshotWriter
from trainer.checkpoint.staging import Staging
from trainer.config import TrainerConfig
from trainer.generations import Generations
from trainer.job import Generation, Mailbox, RankJob
from trainer.mesh import Axes
from trainer.state import TrainingState
from trainer.step import Votes
from trainingrun.protocol import wire
from trainingrun.protocol.records import Epoch, RestoreSource, SnapshotId

log = logging.getLogger(__name__)

# Of the writers' own group: they wait for the slowest, whose storage may be slow.
COLLECTIVE_TIMEOUT = datetime.timedelta(hours=1)


class SnapshotKeeper:
    """Snapshots of this rank; `on` is False when they are switched off."""

    def __init__(self, job: RankJob, local_rank: int, axes: Axes, state: TrainingState, *, on: bool) -> None:
        self.on = on
        self.seconds = 0.0  # of the newest snapshot, until the next step has carried it to the others
        self._state = state
        self._epoch = job.record.epoch
        self._unprotected: int | None = None
        self._generations: Generations | None = None
        self._mailbox = Mailbox(job.mailbox) if local_rank == 0 else None  # to the node's agent
        if on and job.record.rung.buddies:
            self._generations = Generations(len(job.record.members), _restored(job.record))
        if on:
            self._writer = SnapshotWriter(
                job.snapshot_dir,
                epoch=job.record.epoch,
                local_rank=local_rank,
                layout=job.record.rung.layout,
                piece=axes.piece,
                tensors=state.tensors(),
            )

    @property
    def ready(self) -> bool:
        """Whether the next snapshot may be taken; a pause need not ask."""
        return self._generations is None or self._generations.ready

    def take(self) -> float:
        """Write the state as it is now; seconds."""
        self.seconds = self._writer.write(self._state.step, self._state.scalars())
        self._unprotected = self._state.step
        if self._generations is not None:
            self._generations.taken(SnapshotId(self._epoch, self._state.step))
        return self.seconds

    def copied(self) -> bool | None:
        """Whether this node has its buddy's part of the newest snapshot; None: not known yet, or not this rank's to
        tell.
        """
        if self._generations is None or self._mailbox is None or self._generations.copying is None:
            return None
        answer = self._mailbox.copied()
        if answer is None or answer.snapshot != self._generations.copying:
            return None
        return answer.complete

    def everyone_passed(self, agreed: Votes) -> int | None:
        """A collective after the newest snapshot is over, so all ranks have sealed theirs. The step that every node
        has its buddy's part of with that, told once.
        """
        self.seconds = 0.0
        if self._generations is not None:
            return self._next_generation(self._generations, agreed)
        if self._unprotected is not None:
            self._writer.protect(self._epoch, self._unprotected)
            self._unprotected = None
        return None

    def _next_generation(self, generations: Generations, agreed: Votes) -> int | None:
        complete = generations.answered(agreed.copied, agreed.not_copied)
        if complete is not None:
            self._writer.protect(complete.epoch, complete.step)
        begun = generations.passed()
        if begun is not None and self._mailbox is not None:
            self._mailbox.post_generation(Generation(begun, generations.kept))
        return complete.step if complete is not None else None


def _restored(record: Epoch) -> SnapshotId | None:
    """The snapshot that the nodes hold as their ranks will cut it."""
    restore = record.restore
    same = restore.source is RestoreSource.MEMORY and restore.layout == record.rung.layout
    return SnapshotId(restore.epoch, restore.step) if same else None


@dataclass(frozen=True)
class Saved:
    """A durable checkpoint that was committed."""

    name: str
    step: int
    seconds: float  # from the copy to the commit


class DurableKeeper:
    """Durable checkpoints of all ranks together: begun at an agreed step, ended in the background, one at a time."""

    def __init__(
        self,
        job: RankJob,
        config: TrainerConfig,
        axes: Axes,
        state: TrainingState,
        *,
        parent: str,
        about: AboutModel,
    ) -> None:
        self._job = job
        self._config = config
        self._axes = axes
        self._state = state
        self._about = about
        self.newest = parent
        self._staging = Staging()
        self._group: dist.ProcessGroup | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saving")
        self._running: Future[Saved] | None = None

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
        return max(0.0, now - location.stat(manifest_of(newest.name)).modified)

    def begin(self) -> float:
        """Collective: copy the state as it is now, and start to write it; the seconds that the copy took.

        The one before must have ended, and have been asked for (`ended`).
        """
        if self._running is not None:
            raise RuntimeError(
                f"step {self._state.step}: the checkpoint before this one is still being written"
            )
        if self._axes.world > 1 and self._group is None:
            # The step's own group is busy meanwhile; and only gloo moves what is in host memory.
            self._group = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        started = time.perf_counter()
        tensors = self._staging.copy(self._state.tensors())
        stalled = time.perf_counter() - started
        self._running = self._thread.submit(
            self._write, self._state.step, tensors, self._state.scalars(), self.newest, started
        )
        return stalled

    def ended(self, *, wait: bool) -> Saved | None:
        """The checkpoint that was begun, told once; None while it is being written, or when none was begun.

        Raises what it failed with: SaveFailed or Fenced, the same on every rank, but not at the same time.
        """
        running = self._running
        if running is None or not (wait or running.done()):
            return None
        self._running = None
        saved = running.result()
        self.newest = saved.name
        return saved

    def _write(
        self,
        step: int,
        tensors: dict[str, torch.Tensor],
        scalars: dict[str, Any],
        parent: str,
        started: float,
    ) -> Saved:
        record = self._job.record
        name = durable.save(
            self._config.checkpoint.location,
            step=step,
            epoch=record.epoch,
            tensors=tensors,
            scalars=scalars,
            parent=parent,
            run_uid=self._job.run_uid,
            keep_last=self._config.checkpoint.keep_last,
            group=self._group,
            plan=wire.to_json(record.rung),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            about=self._about,
        )
        log.info("step %d: saved %s", step, name)
        return Saved(name, step, time.perf_counter() - started)

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
        return newest.name if read_manifest(location, newest.name).run_uid == self._job.run_uid else ""
