"""The ranks of one epoch on this node, as processes: forks of the warm server, watched by their sentinels.

Nothing but the job goes to a rank and nothing but its exit code comes back: a queue or an event would be a named
semaphore, which a killed node leaves behind in shared memory.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import wait

from trainer.agent import entry
from trainer.job import RankJob


class Ranks:
    def __init__(self, rank_module: str, job: RankJob) -> None:
        context = multiprocessing.get_context("forkserver")
        count = job.record.rung.processes_per_node
        self._processes = [
            context.Process(
                target=entry.run_rank, args=(rank_module, job, local_rank), name=f"rank-{local_rank}"
            )
            for local_rank in range(count)
        ]
        self.ended: dict[
            int, int
        ] = {}  # local rank -> exit code (negative: a signal), in the order of their ends

    def start(self) -> dict[int, int]:
        """Pids by local rank. Raises OSError or EOFError when the fork server does not answer."""
        for process in self._processes:
            process.start()
        return {local_rank: process.pid or 0 for local_rank, process in enumerate(self._processes)}

    def wait(self, also: Sequence[int], timeout_seconds: float) -> None:
        """Until a rank ends, a descriptor in `also` is readable, or the time is over; `ended` is new then."""
        running = self._running()
        wait([*(process.sentinel for _, process in running), *also], timeout_seconds)
        for local_rank, process in running:
            if process.exitcode is not None:
                self.ended[local_rank] = process.exitcode

    @property
    def all_ended(self) -> bool:
        return len(self.ended) == len(self._processes)

    @property
    def any_failed(self) -> bool:
        return any(code != 0 for code in self.ended.values())

    def kill(self) -> None:
        """SIGKILL to those that still run. `ended` stays: who was killed by us is not among them."""
        for _, process in self._running():
            process.kill()

    def close(self, timeout_seconds: float) -> None:
        """Kill them, wait until they are gone, and give back their descriptors."""
        self.kill()
        deadline = time.monotonic() + timeout_seconds
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is not None:
                process.close()  # one that cannot die yet, in a driver say, keeps them

    def _running(self) -> list[tuple[int, multiprocessing.process.BaseProcess]]:
        return [(rank, process) for rank, process in enumerate(self._processes) if rank not in self.ended]
