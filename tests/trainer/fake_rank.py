"""A rank that trains nothing: gloo all-reduces in a loop, progress, pauses and failures on demand. For agent
tests.

The spec's `fake` block says what to do: {"steps": n, "stepSeconds": s, "torch": bool}. A file `order-<rank>`
in the log folder makes that rank do something at its next step: raise, exit-<code>, damaged. A file `finish`
ends the run when all ranks see one.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

from trainer.checkpoint import snapshot_format as form
from trainer.job import Mailbox, RankJob, Result
from trainingrun.protocol.messages import Progress
from trainingrun.protocol.records import EpochSummary, RankExit

if os.environ.get("FAKE_RANK_IMPORTS") == "torch":
    importlib.import_module("torch.distributed")
if os.environ.get("FAKE_RANK_IMPORTS") == "broken":
    raise RuntimeError("this training code is broken")


def main(job: RankJob, local_rank: int) -> None:
    rank, world = job.rank(local_rank), job.record.rung.world
    note(job, rank, "entered")
    mailbox = Mailbox(job.mailbox)
    fake = job.spec["fake"]
    agree = _collective(job, rank, world) if fake.get("torch") else lambda *votes: votes
    print(f"rank {rank} of {world} starts from step {job.record.restore.step}", flush=True)
    step, started = job.record.restore.step, time.time()
    while step < fake["steps"]:
        time.sleep(fake["stepSeconds"])
        _obey(job, rank, local_rank, mailbox)
        pause, finish = agree(mailbox.pause_requested(), (job.log_dir / "finish").exists())
        step += 1
        if step == job.record.restore.step + 1:
            note(job, rank, "stepped")
        progress = _progress(job, step, fake["steps"], started)
        if rank == 0:
            mailbox.post_progress(progress)
        if fake.get("snapshots"):
            write_snapshot(job, rank, local_rank, step)
        if pause:
            if local_rank == 0:
                mailbox.post_result(Result("Paused", step, progress=progress))
            return
        if finish:
            break
    if local_rank == 0:
        mailbox.post_result(
            Result(
                "Done",
                step,
                final=rank == 0,
                manifest="step-9.e1",
                export="file:///models/x",
                progress=progress,
            )
        )


def write_snapshot(job: RankJob, rank: int, local_rank: int, step: int) -> None:
    rung = job.record.rung
    piece = (0, rank // rung.tensor % rung.shard, rank % rung.tensor)
    path = job.snapshot_dir / form.file_name(job.record.epoch, local_rank, step % 2)
    path.write_bytes(sealed(job.record.epoch, step, rung.layout, piece))


def sealed(
    epoch: int, step: int, layout: tuple[int, int, int], piece: tuple[int, int, int], size: int = 0
) -> bytes:
    """A snapshot file with one tensor of this many bytes, which are other ones in each piece and step."""
    content = bytes([(epoch + step + 16 * piece[0] + 4 * piece[1] + piece[2]) % 256]) * size
    index = form.pack_index([form.Entry("x", "uint8", (size,), (0,), (size,), 0, size)])
    tail = json.dumps({"scalars": {}, "sums": [form.checksum(content)]}).encode()
    data = form.aligned(form.HEADER_BYTES + len(index))
    header = form.Header(
        epoch=epoch,
        step=step,
        layout=layout,
        piece=piece,
        data=data,
        index=(form.HEADER_BYTES, len(index), form.checksum(index)),
        tail=(data + size, len(tail), form.checksum(tail)),
    )
    start = form.pack_header(header).ljust(form.HEADER_BYTES, b"\0") + index
    return start.ljust(data, b"\0") + content + tail


def note(job: RankJob, rank: int, what: str) -> None:
    """One line for the test, with the time (seconds since 1970)."""
    files = [path.name for path in job.restore_files]
    line = {
        "at": time.time(),
        "what": what,
        "epoch": job.record.epoch,
        "rank": rank,
        "pid": os.getpid(),
        "files": files,
    }
    with (job.log_dir / "notes.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def _collective(job: RankJob, rank: int, world: int) -> Any:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    where = job.record.store
    client = dist.TCPStore(where.host, where.port, is_master=False, timeout=timedelta(seconds=60))
    store = dist.PrefixStore(where.prefix, client)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))

    def agree(*votes: bool) -> list[bool]:
        counts = torch.tensor([float(vote) for vote in votes])
        dist.all_reduce(counts)
        return [count == world for count in counts.tolist()]

    return agree


def _obey(job: RankJob, rank: int, local_rank: int, mailbox: Mailbox) -> None:
    order = job.log_dir / f"order-{rank}"
    if not order.exists():
        return
    what = order.read_text()
    order.unlink()
    if what == "raise":
        raise ValueError("the loss is a banana")
    if what == "damaged":
        mailbox.post_damaged("step-00000005.e0001")
        mailbox.post_error(RankExit(job.slot, local_rank, 65, "checkpoint step-00000005.e0001 is damaged"))
        sys.exit(65)
    if what.startswith("exit-"):
        code = int(what.removeprefix("exit-"))
        mailbox.post_error(RankExit(job.slot, local_rank, code, f"ends with {code} on request"))
        sys.exit(code)


def _progress(job: RankJob, step: int, steps: int, started: float) -> Progress:
    summary = EpochSummary(
        job.record.epoch, started, job.record.restore.step + 1, step, time.time(), step * 100
    )
    return Progress(step, 1.0 / step, step * 100, 1000.0, 1e-3, steps, summary)
