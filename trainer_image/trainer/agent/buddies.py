"""Keeps the newest snapshots of another node, its buddy, beside this node's own: the loss of any one node then
leaves every piece of the state in memory.

One thread for each epoch whose plan wants it, while its ranks run. It copies what the ranks name in the mailbox, one
generation at a time, and answers there; it decides nothing, holds at most two generations, and never makes a rank
wait. A peer that dies in the middle leaves nothing behind but a copy that is given up.
"""

from __future__ import annotations

import logging
import threading

from trainer.agent import fetch, pieces
from trainer.agent.snapshots import Snapshots
from trainer.checkpoint import snapshot_format as form
from trainer.job import Copied, Generation, Mailbox, RankJob

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.02


class Buddies:
    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._ended = threading.Event()

    def begin(self, job: RankJob) -> None:
        """The ranks of this epoch run."""
        self.end()
        if not job.record.rung.buddies:
            return
        self._ended = threading.Event()
        keeper = _Keeper(self._snapshots, job, self._ended)
        threading.Thread(target=keeper.run, name="buddies", daemon=True).start()

    def end(self) -> None:
        """The ranks are stopped. A transfer ends by itself, at its next block or its timeout: nobody waits for it."""
        self._ended.set()


class _Keeper:
    def __init__(self, snapshots: Snapshots, job: RankJob, ended: threading.Event) -> None:
        self._snapshots = snapshots
        self._record = job.record
        self._mailbox = Mailbox(job.mailbox)
        self._ended = ended
        self._buddy = pieces.buddy(job.record, job.member)
        self._wanted = pieces.of_member(job.record.rung, self._buddy)

    def run(self) -> None:
        answered: Generation | None = None
        while not self._ended.wait(LOOK_SECONDS):
            generation = self._mailbox.generation()
            if generation is None or generation == answered:
                continue
            try:
                complete = self._copy(generation)
            except fetch.Interrupted:
                continue  # the ranks are stopped, or went on to a newer snapshot
            except Exception:
                logger.exception("keeping a buddy's snapshot failed")
                complete = False
            answered = generation
            self._answer(generation, complete)

    def _answer(self, generation: Generation, complete: bool) -> None:
        if self._ended.is_set():
            return
        try:
            self._mailbox.post_copied(Copied(generation.snapshot, complete))
        except FileNotFoundError:
            logger.info("the epoch is over; nobody waits for step %d any more", generation.snapshot.step)

    def _copy(self, generation: Generation) -> bool:
        """Whether this node has all of its buddy's pieces now."""
        folder, snapshot = self._snapshots.buddies, generation.snapshot
        form.drop_copies(folder, {snapshot, generation.kept})
        missing = self._wanted - self._snapshots.files_of(snapshot.epoch, snapshot.step).keys()
        if not missing:
            return True
        peer = self._record.members[self._buddy]
        try:
            fetch.fetch(folder, snapshot, missing, [peer], lambda: self._overtaken(generation))
        except (fetch.PiecesMissing, fetch.PiecesDamaged) as problem:
            logger.warning("no copy of step %d of slot %d is kept: %s", snapshot.step, peer.slot, problem)
            return False
        return True

    def _overtaken(self, generation: Generation) -> bool:
        return self._ended.is_set() or self._mailbox.generation() != generation
