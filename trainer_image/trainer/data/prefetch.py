"""Reads the next steps in a thread while the present one is trained.

Changes nothing but time: what a step reads follows from its number, and the reader logs it only when it is handed
out. At most DEPTH steps are in memory besides the one that is trained. An error of the thread is raised by
the step that it belongs to. The thread starts with the first step, so never before a fork. Called by the train loop.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from trainer.data.batches import BatchReader, MicroBatch, StepData

DEPTH = 2


class Prefetch:
    def __init__(self, reader: BatchReader, *, last_step: int, depth: int = DEPTH) -> None:
        """Steps after `last_step` are never read ahead. `depth` 0: no thread."""
        self._reader = reader
        self._last = last_step
        self._depth = depth
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: deque[tuple[int, Future[StepData]]] = deque()
        self.waited = 0.0  # seconds that the newest step waited for its data

    def step(self, step: int) -> list[MicroBatch]:
        """As BatchReader.step; steps are usually asked for one after the other."""
        started = time.monotonic()
        batches = self._reader.hand_out(self._take(step))
        self.waited = time.monotonic() - started
        return batches

    def close(self) -> None:
        """Stop reading ahead. A step that is being read is not waited for."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        self._ahead.clear()
        self._reader.close()

    def _take(self, step: int) -> StepData:
        if not self._depth:
            return self._reader.read(step)
        if self._ahead and self._ahead[0][0] != step:  # another step than was expected
            for _, future in self._ahead:
                future.cancel()
            self._ahead.clear()
        if not self._ahead:
            self._submit(step)
        _, present = self._ahead.popleft()
        following = self._ahead[-1][0] + 1 if self._ahead else step + 1
        while len(self._ahead) < self._depth and following <= self._last:
            self._submit(following)
            following += 1
        return present.result()

    def _submit(self, step: int) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data")
        self._ahead.append((step, self._pool.submit(self._reader.read, step)))
