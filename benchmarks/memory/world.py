"""A few ranks on this machine for a measurement: forked from a server that has imported the trainer, joined by gloo."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

_TIMEOUT_SECONDS = 300


def on_ranks(function: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
    """`function(rank, *arguments)` of each rank, by rank; raises what one of them raises."""
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the server has no other way to find it
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["trainer.rank"])
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(world, mp_context=context) as pool,
    ):
        ranks = [pool.submit(_rank, function, rank, world, folder, arguments) for rank in range(world)]
        return [rank.result(_TIMEOUT_SECONDS) for rank in ranks]


def _rank(
    function: Callable[..., Any], rank: int, world: int, folder: str, arguments: tuple[Any, ...]
) -> Any:
    torch.set_num_threads(1)
    if world == 1:
        return function(rank, *arguments)
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(f"{folder}/store", world),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=_TIMEOUT_SECONDS),
    )
    try:
        found = function(rank, *arguments)
        dist.barrier()
        return found
    finally:
        dist.destroy_process_group()
