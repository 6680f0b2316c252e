"""How fast the machine is, measured by the ranks themselves when a run begins: for machines that no table knows.

All ranks measure at once, as they will train at once, and the slowest counts. It takes a quarter of a second, and only
epochs that start from nothing measure: a recovery never waits for it. Called by `rank`; what comes of it is the
controller's and `trainingrun calibration export`'s to say.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from trainingrun.protocol.records import MachineSpeed

BUDGET_SECONDS = 0.08  # of each measurement; one is always made, and thrown away before
_PRODUCT = 512  # square matrices: 1 MiB each in FP32, large enough for the rate of large ones
_COPIED = 64 << 20  # bytes: more than caches hold
_REDUCED = 4 << 20


def measure(world: int, nodes: int, compute: torch.dtype) -> MachineSpeed:
    """Collective over a run of `world` ranks on `nodes` nodes. `compute`: format of the matrix products."""
    _wait_for_all(world)
    product = best_seconds(_product(compute))
    copy = best_seconds(_copy())
    link = best_seconds(_all_reduce(), most=2) if world > 1 else 0.0
    rates = [
        round(2 * _PRODUCT**3 / product),
        round(2 * _COPIED / copy),
        # Each rank sends, and receives, 2 (n - 1) / n of the message.
        round(2 * (world - 1) / world * _REDUCED / link) if link else 0,
    ]
    slowest = torch.tensor(rates, dtype=torch.int64)
    if world > 1:
        dist.all_reduce(slowest, op=dist.ReduceOp.MIN)
    matmul, memory, sent = (int(rate) for rate in slowest)
    return MachineSpeed(
        matmul_flops=matmul,
        memory_bytes_per_second=memory,
        local_link_bytes_per_second=sent if nodes == 1 else 0,
        link_bytes_per_second=sent if nodes > 1 else 0,
    )


def best_seconds(
    work: Callable[[], object],
    *,
    most: int | None = None,
    budget: float = BUDGET_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Of one turn of `work`, the fastest of those that fit in the budget. `most`: turns, where all ranks must make
    equally many.
    """
    work()
    begin = clock()
    best, turns = float("inf"), 0
    while turns < most if most is not None else (turns < 1 or clock() - begin < budget):
        started = clock()
        work()
        best, turns = min(best, clock() - started), turns + 1
    return max(best, 1e-9)


def _wait_for_all(world: int) -> None:
    if world > 1:
        dist.all_reduce(torch.zeros(1))


def _product(compute: torch.dtype) -> Callable[[], object]:
    left, right = (torch.full((_PRODUCT, _PRODUCT), 1.0 / _PRODUCT, dtype=compute) for _ in range(2))
    return lambda: torch.mm(left, right)


def _copy() -> Callable[[], object]:
    source, target = _buffer(_COPIED), _buffer(_COPIED)
    source.fill_(1)
    return lambda: target.copy_(source)


def _all_reduce() -> Callable[[], object]:
    message = _buffer(_REDUCED).view(torch.float32)
    return lambda: dist.all_reduce(message)


def _buffer(size: int) -> torch.Tensor:
    """Bytes that go back to the system at once: what the allocator keeps would be taken for memory of the model."""
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
