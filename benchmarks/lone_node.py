"""A node without an agent: the ranks of one epoch, forked from a warm server as an agent does, until they end.

For benchmarks of the ranks alone: there is no membership, so whoever dies here is not replaced.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from trainer.agent.ranks import Ranks
from trainer.agent.warm import WarmServer
from trainer.data.prepare import prepare
from trainer.job import RankJob
from trainingrun.protocol.records import (
    Epoch,
    EpochSummary,
    Member,
    Restore,
    RestoreSource,
    Rung,
    Store,
    Trigger,
)


def a_job(spec: dict[str, Any], rung: Rung, folder: Path, store: Store) -> RankJob:
    record = Epoch(
        name="bench-e1",
        run="bench",
        run_uid="bench",
        epoch=1,
        revision="bench-r1",
        nonce="n",
        created_at=time.time(),
        members=(Member(0, 1, "s0", "node-0", "127.0.0.1", 0),),
        rung=rung,
        store=store,
        restore=Restore(RestoreSource.INITIAL),
        trigger=Trigger.STARTED,
        detected_at=time.time(),
        previous=EpochSummary(),
        shares_member=True,
    )
    return RankJob(
        spec=spec,
        record=record,
        member=0,
        slot=0,
        run_uid="bench",
        mailbox=folder / "mailbox",
        snapshot_dir=folder / "snapshots",
        restore_files=(),
        cache_dir=folder / "cache",
        log_dir=folder,
    )


def run(spec: dict[str, Any], rung: Rung, folder: Path, rank_module: str) -> int:
    """0 when all ranks have ended well; `folder` gets caches, logs, and, so it should be in memory, snapshots."""
    warm = WarmServer(rank_module)
    warm.start()  # before torch.distributed makes a thread here
    import torch.distributed as dist

    prepare(spec, folder / "cache", lambda text: None)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    while not warm.check():
        time.sleep(0.05)
    ranks = Ranks(rank_module, a_job(spec, rung, folder, Store("127.0.0.1", store.port, "bench")))
    ranks.start()
    while not ranks.all_ended and not ranks.any_failed:
        ranks.wait([], 1.0)
    ranks.close(5.0)
    return 1 if ranks.any_failed else 0
