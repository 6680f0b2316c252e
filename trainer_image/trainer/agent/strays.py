"""PID 1's duty: processes whose parent has died become its children, and stay as zombies until it looks at
them.
"""

from __future__ import annotations

import contextlib
import multiprocessing.resource_tracker
import os

from trainer.agent import warm


def reap_strays(init: int = 1) -> None:
    """Reap dead children that nobody else waits for. Does nothing in a process other than `init`."""
    if os.getpid() != init:
        return
    with contextlib.suppress(ChildProcessError):
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in _waited_for():
                return  # it hides those behind it until its owner has seen it, which is soon
            os.waitpid(found.si_pid, 0)


def _waited_for() -> set[int | None]:
    tracker = multiprocessing.resource_tracker._resource_tracker
    return {warm.server_pid(), getattr(tracker, "_pid", None)}
