"""Two threads that take work from one list: hashing and file access leave the interpreter to each other.

Two, because one hides the waiting of the other, and more would take the processors from the training that goes on
meanwhile. Called by the writer and by the restore of durable checkpoints. No torch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")

LANES = 2


def share(tasks: Iterable[Task], work: Callable[[Iterator[Task]], None]) -> None:
    """Call `work` in each thread with the tasks that fall to it, each the next one that nobody has taken. Once it has
    failed in one of them nothing more is taken; the failure is raised when both have ended.
    """
    left = deque(tasks)

    def taken() -> Iterator[Task]:
        while True:
            try:
                yield left.popleft()
            except IndexError:
                return

    def lane() -> None:
        try:
            work(taken())
        finally:
            left.clear()

    with ThreadPoolExecutor(LANES, thread_name_prefix="checkpoint") as pool:
        lanes = [pool.submit(lane) for _ in range(min(LANES, len(left)))]
    for ended in lanes:
        ended.result()
