"""Ties a process to its parent: when the parent dies, however it dies, the kernel kills this process.

The chain is agent -> fork server -> rank, and agent -> data process. The signal is sent when the *thread*
that made the process ends, so these processes are made by threads that live as long as their process.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def tie(parent: int) -> None:
    """Die with process `parent`; ends this process at once if `parent` is no longer its parent."""
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)  # it died before the tie was made
