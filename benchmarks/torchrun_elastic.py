"""Recovery of torchrun elastic on local "nodes", for comparison: rank killed, node killed, node back.

A node is one torchrun agent with its workers in a process group of its own; losing it is SIGKILL of that group.
The rendezvous store is a process outside the nodes, which is kind to torchrun: with the store inside the first node,
losing that node is fatal. Called by benchmarks.recovery.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STORE = (
    "import sys, time; from datetime import timedelta; from torch.distributed import TCPStore;"
    "store = TCPStore('127.0.0.1', int(sys.argv[1]), is_master=True, wait_for_workers=False,"
    " timeout=timedelta(seconds=60)); print('up', flush=True); time.sleep(3600)"
)
TUNED = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


@dataclass(frozen=True)
class Workload:
    """The model and batch that both systems train."""

    config: dict[str, object]
    global_batch: int
    sequence_length: int
    checkpoint_every: int
    processes: int = 2


@dataclass(frozen=True)
class Step:
    at: float
    step: int
    world: int
    pid: int


class TorchrunPair:
    """Two torchrun nodes training one model. `cap_seconds` bounds every wait."""

    def __init__(self, python: str, workload: Workload, tuned: bool, cap_seconds: float) -> None:
        self.python, self.workload, self.tuned, self.cap_seconds = python, workload, tuned, cap_seconds
        self.folder = Path(tempfile.mkdtemp(prefix="torchrun-bench-"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.store = subprocess.Popen(
            [python, "-c", STORE, str(self.port)], stdout=subprocess.PIPE, start_new_session=True, text=True
        )
        if self.store.stdout is None or self.store.stdout.readline().strip() != "up":
            raise RuntimeError("the rendezvous store did not start")
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}

    def start_node(self, node: int) -> None:
        conf = "is_host=false" + ("," + TUNED if self.tuned else "")
        environment = dict(os.environ, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
        if self.tuned:
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        work = self.workload
        command = [
            self.python, "-m", "torch.distributed.run", "--nnodes=1:2", f"--nproc_per_node={work.processes}",
            "--rdzv_backend=c10d", f"--rdzv_endpoint=127.0.0.1:{self.port}", "--rdzv_id=bench",
            f"--rdzv_conf={conf}", "--max_restarts=100", "--local_addr=127.0.0.1",
            str(Path(__file__).with_name("torchrun_worker.py")),
            "--config", json.dumps(work.config), "--folder", str(self.folder),
            "--global-batch", str(work.global_batch), "--sequence-length", str(work.sequence_length),
            "--checkpoint-every", str(work.checkpoint_every),
        ]  # fmt: skip
        with (self.folder / f"node-{node}.log").open("ab") as log:
            self.nodes[node] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill_node(self, node: int) -> float:
        """SIGKILL of the agent and of its workers, which torchrun starts in sessions of their own."""
        agent = self.nodes.pop(node)
        victims = [agent.pid, *descendants(agent.pid)]
        at = time.time()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()
        return at

    def kill_rank(self, node: int) -> float:
        at = time.time()
        os.kill(descendants(self.nodes[node].pid)[-1], signal.SIGKILL)
        return at

    def steps(self) -> list[Step]:
        found = []
        for path in self.folder.glob("steps-*.jsonl"):
            for line in path.read_text().splitlines():
                row = json.loads(line)
                if "step" in row:
                    found.append(Step(**row))
        return sorted(found, key=lambda step: step.at)

    def import_seconds(self) -> float:
        rows = [json.loads(path.read_text().split("\n")[0]) for path in self.folder.glob("steps-*.jsonl")]
        return float(max((row["import_seconds"] for row in rows), default=0.0))

    def first_step_after(self, at: float, world: int) -> Step | None:
        """The first step of that world size after `at`, or None when the cap passes."""
        deadline = time.time() + self.cap_seconds
        while time.time() < deadline:
            for step in self.steps():
                if step.at > at and step.world == world:
                    return step
            time.sleep(0.05)
        return None

    def newest_step(self, world: int) -> int:
        return max((step.step for step in self.steps() if step.world == world), default=0)

    def close(self) -> None:
        for node in list(self.nodes):
            self.kill_node(node)
        self.store.kill()
        self.store.wait()


def descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on, oldest first."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children += [int(child) for child in task.read_text().split()]
    return children + [grandchild for child in children for grandchild in descendants(child)]


@contextlib.contextmanager
def torchrun_pair(python: str, workload: Workload, tuned: bool, cap_seconds: float) -> Iterator[TorchrunPair]:
    pair = TorchrunPair(python, workload, tuned, cap_seconds)
    try:
        yield pair
    finally:
        pair.close()


@dataclass(frozen=True)
class Outcome:
    """Seconds from the fault (or the node's return) to the next step; None when the cap passed."""

    fault: str
    seconds: float | None
    steps_lost: int | None
    import_seconds: float


def try_once(python: str, workload: Workload, tuned: bool, cap_seconds: float) -> list[Outcome]:
    """One try of every fault in one run: rank killed, node killed, node back."""
    full, half = 2 * workload.processes, workload.processes
    outcomes: list[Outcome] = []

    def record(fault: str, since: float, world: int, before: int) -> bool:
        step = pair.first_step_after(since, world)
        lost = None if step is None else max(0, before - step.step + 1)
        seconds = None if step is None else step.at - since
        outcomes.append(Outcome(fault, seconds, lost, pair.import_seconds()))
        return step is not None

    with torchrun_pair(python, workload, tuned, cap_seconds) as pair:
        pair.start_node(0)
        pair.start_node(1)
        if pair.first_step_after(0.0, full) is None:
            raise RuntimeError(f"torchrun did not start; see {pair.folder}/node-0.log")
        time.sleep(workload.checkpoint_every * 0.2)
        before = pair.newest_step(full)
        killed = pair.kill_rank(1)
        if not record("rank killed", killed, full, before):
            return outcomes
        time.sleep(2.0)
        before = pair.newest_step(full)
        killed = pair.kill_node(1)
        if not record("node killed, survivors stepping", killed, half, before):
            return outcomes
        time.sleep(1.0)
        before, back = pair.newest_step(half), time.time()
        pair.start_node(1)
        record("node back, full size", back, full, before)
    return outcomes
