"""Memory that a step has freed is kept for the next one, instead of being given back to the kernel and cleared again.

A step frees all of its activations and gradients, and needs as much right after. By default glibc maps and unmaps
each large tensor by itself, so that every step pays for a page fault and a cleared page for every 4 KiB of it. Called
once by each rank, before its first tensor; the peak stays what it was, but what lies below it is not returned.
"""

from __future__ import annotations

import ctypes

# Of malloc.h, for mallopt.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_NEVER = -1
_GROWTH_BYTES = 64 << 20


def keep_memory() -> bool:
    """Whether it could be arranged: only glibc knows how."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, _GROWTH_BYTES))
    return all(mallopt(option, value) == 1 for option, value in wanted)
