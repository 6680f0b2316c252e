"""Epochs of real ranks without agents: the test serves the store and starts `trainer.rank.main` itself."""

from __future__ import annotations

import datetime
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from tests.trainer.layouts import a_rung
from tests.trainer.worlds import warm_context

from trainer.checkpoint import snapshot
from trainer.data.prepare import prepare
from trainer.job import Mailbox, RankJob, Result
from trainingrun.protocol.messages import Progress
from trainingrun.protocol.records import (
    Epoch,
    EpochSummary,
    Member,
    RankExit,
    Restore,
    RestoreSource,
    Store,
    Trigger,
)

TIMEOUT_SECONDS = 200
GLOBAL_BATCH = 8


def a_spec(folder: Path, *, steps: int = 8, precision: str = "FP64", **changes: Any) -> dict[str, Any]:
    """A resolved spec on a small text of its own. `changes` replace whole blocks of it."""
    golden = Path(__file__).parent.parent / "golden" / "resolved-spec.json"
    spec: dict[str, Any] = json.loads(golden.read_text())
    text = folder / "text"
    text.mkdir(parents=True, exist_ok=True)
    for number in range(40):
        words = [f"w{(number * 7 + i * i) % 50}" for i in range(60 + number)]
        (text / f"{number:02d}.txt").write_text(" ".join(words))
    spec["model"]["config"] |= {"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    spec["model"]["tokenizer"] = {"uri": None, "train": {"vocabularySize": 300}}
    spec["data"] |= {"sources": [{"name": "text", "uri": text.as_uri(), "format": "Text"}], "validation": []}
    spec["training"] |= {
        "duration": {"tokens": None, "steps": steps},
        "globalBatch": {"tokens": None, "sequences": GLOBAL_BATCH},
        "sequenceLength": 32,
        "precision": precision,
    }
    spec["checkpoint"] |= {
        "location": {"uri": (folder / "checkpoints").as_uri()},
        "memory": {"intervalSteps": 1},
        "durable": {"intervalSeconds": None, "intervalSteps": None, "keepLast": 3},
    }
    spec["output"] = {"format": "Safetensors", "uri": (folder / "model").as_uri()}
    return spec | changes


@dataclass
class Ended:
    """What the ranks of an epoch left behind."""

    results: list[Result | None]  # by node
    errors: list[RankExit]
    exit_codes: list[int | None]  # by rank
    progress: Progress | None
    damaged: str
    history: list[Progress] = field(default_factory=list)  # steps that the test saw, not all of them


class Folder:
    """Folders of a run with one or more nodes of `processes` ranks each."""

    def __init__(self, folder: Path, spec: dict[str, Any]) -> None:
        self.folder = folder
        self.spec = spec
        self.store = dist.TCPStore("127.0.0.1", _free_port(), is_master=True, wait_for_workers=False)
        prepare(spec, folder / "cache", lambda text: None)

    def snapshot_dir(self, node: int) -> Path:
        return self.folder / f"node-{node}" / "snapshots"

    def held(self, epoch: int, step: int, nodes: int) -> tuple[Path, ...]:
        """Snapshot files of a step on the first `nodes` nodes."""
        found: list[Path] = []
        for node in range(nodes):
            found += snapshot.files_of(self.snapshot_dir(node), epoch, step)
        return tuple(found)

    def run(
        self,
        epoch: int,
        *,
        restore: Restore | None = None,
        restore_files: tuple[Path, ...] = (),
        previous: EpochSummary | None = None,
        shares_member: bool = True,
        pause_after: int | None = None,
        when: Callable[[Progress, list[Any]], None] | None = None,
        nodes: int = 1,
        first: Callable[[], None] | None = None,
        **axes: Any,
    ) -> Ended:
        """Run an epoch to its end, or to the step after which the first node is asked to pause.

        `when` sees the newest progress and the processes, and may act. `first` is called in each rank before it starts.
        """
        rung = a_rung(global_batch=GLOBAL_BATCH, **axes)
        per_node = rung.world // nodes
        rung = type(rung)(**{**rung.__dict__, "nodes": nodes, "processes_per_node": per_node})
        record = Epoch(
            name=f"run-e{epoch}",
            run="run",
            run_uid="uid",
            epoch=epoch,
            revision="run-r1",
            nonce="n",
            created_at=0.0,
            members=tuple(Member(n, 1, f"s{n}", f"node-{n}", "127.0.0.1", 0) for n in range(nodes)),
            rung=rung,
            store=Store("127.0.0.1", self.store.port, f"epoch-{epoch}"),
            restore=restore or Restore(RestoreSource.INITIAL),
            trigger=Trigger.STARTED,
            detected_at=0.0,
            previous=previous or EpochSummary(),
            shares_member=shares_member,
        )
        jobs = [
            RankJob(
                spec=self.spec,
                record=record,
                member=node,
                slot=node,
                run_uid="uid",
                mailbox=self.folder / f"node-{node}" / f"mailbox-{epoch}",
                snapshot_dir=self.snapshot_dir(node),
                restore_files=restore_files,
                cache_dir=self.folder / "cache",
                log_dir=self.folder / f"node-{node}" / "logs",
            )
            for node in range(nodes)
        ]
        mailboxes = [Mailbox(job.mailbox) for job in jobs]
        processes = []
        for job in jobs:
            for local_rank in range(per_node):
                process = warm_context().Process(
                    target=_rank, args=(job, local_rank, pause_after, first), daemon=True
                )
                process.start()
                processes.append(process)
        history = self._wait(processes, mailboxes, when)
        return Ended(
            results=[mailbox.result() for mailbox in mailboxes],
            errors=[error for mailbox in mailboxes for error in mailbox.errors()],
            exit_codes=[process.exitcode for process in processes],
            progress=mailboxes[0].progress(),
            damaged="".join(mailbox.damaged() for mailbox in mailboxes),
            history=history,
        )

    def _wait(self, processes: list[Any], mailboxes: list[Mailbox], when: Any) -> list[Progress]:
        history: list[Progress] = []
        deadline = time.monotonic() + TIMEOUT_SECONDS
        try:
            while any(process.is_alive() for process in processes):
                progress = mailboxes[0].progress()
                if progress is not None and (not history or progress.step > history[-1].step):
                    history.append(progress)
                    if when is not None:
                        when(progress, processes)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"ranks still run after {TIMEOUT_SECONDS} s")
                if any(process.exitcode not in (None, 0) for process in processes):
                    break  # as an agent does: the others are killed
                time.sleep(0.005)
        finally:
            for process in processes:
                process.kill()
                process.join()
        return history


def _rank(job: RankJob, local_rank: int, pause_after: int | None, first: Callable[[], None] | None) -> None:
    from trainer import rank

    def pause_requested(mailbox: Mailbox) -> bool:
        """As if the request had come during step `pause_after`."""
        progress = mailbox.progress()
        done = progress.step if progress else job.record.restore.step
        return pause_after is not None and done + 1 >= pause_after

    Mailbox.pause_requested = pause_requested  # type: ignore[method-assign]
    rank.JOIN_TIMEOUT = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    job.log_dir.mkdir(parents=True, exist_ok=True)
    if first is not None:
        first()
    rank.main(job, local_rank)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
