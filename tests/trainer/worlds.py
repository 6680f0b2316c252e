"""Small worlds of ranks on this machine, for tests: forked from one warm server, torn down after each use."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import torch
import torch.distributed as dist

PRELOAD = ("trainer.rank",)
TIMEOUT_SECONDS = 120


def warm_context() -> Any:
    """Processes of it are forks of a server that has imported the trainer."""
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the server has no other way to find it
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOAD))
    return context


def run_world(function: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
    """`function(rank, *arguments)` on each rank of a new gloo world; the results by rank."""
    context = warm_context()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sent = pickle.dumps(
        arguments
    )  # by value: torch's own way shares file descriptors with a process that may be gone
    pipes, processes = [], []
    for rank in range(world):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(theirs, function, rank, world, port, sent), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        return _results(pipes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _results(pipes: list[Any]) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(pipes):
        waiting = {pipe: rank for rank, pipe in enumerate(pipes) if rank not in results}
        ready = wait(list(waiting), timeout=TIMEOUT_SECONDS)
        if not ready:
            raise TimeoutError(f"ranks {sorted(waiting.values())} said nothing for {TIMEOUT_SECONDS} s")
        for pipe in ready:
            ok, value = pickle.loads(pipe.recv_bytes())
            if not ok:
                raise AssertionError(f"rank {waiting[pipe]} failed:\n{value}")
            results[waiting[pipe]] = value
    return [results[rank] for rank in range(len(pipes))]


def _rank(pipe: Any, function: Callable[..., Any], rank: int, world: int, port: int, sent: bytes) -> None:
    torch.set_num_threads(1)
    try:
        if world > 1:
            limit = datetime.timedelta(seconds=TIMEOUT_SECONDS)
            store = dist.TCPStore("127.0.0.1", port, world, is_master=rank == 0, timeout=limit)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
        pipe.send_bytes(pickle.dumps((True, function(rank, *pickle.loads(sent)))))
        if world > 1:
            dist.barrier()  # the store lives in rank 0
    except BaseException:  # noqa: BLE001 - handed to the test
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
