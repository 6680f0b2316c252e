"""What ranks really take is measured, corrects the next plan, and a size that runs out of memory needs less from the
next revision on: real ranks, whose memory the kernel limits in the middle of the run.
"""

from __future__ import annotations

import json
import resource
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.command import trainingrun
from tests.scenarios.local_line import LocalLine
from tests.scenarios.manifests import small_manifest

from trainingrun.cluster.local.processes import Process
from trainingrun.protocol.records import RestoreSource, Revision

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

STEPS = 12
# Deep and narrow, with long sequences: a micro-batch of the plan keeps most of what the rank holds.
WIDE: dict[str, Any] = {
    "model__config": {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
    },
    "training__globalBatch": {"sequences": 64},
    "training__sequenceLength": 256,
    "training__duration": {"steps": STEPS},
    "scale": {"minNodes": 1, "maxNodes": 1},
    "resources": {"perNode": {"cpu": "1", "memory": "8Gi"}, "processesPerNode": 1},
    "recovery": {"limits": [], "noProgressLimit": 50},
}


def predicted(revision: Revision) -> int:
    """Bytes that the allocator of a rank hands out."""
    bill = revision.plan["rungs"][0]["memory"]
    return sum(
        count for part, count in bill.items() if part not in ("reserved", "snapshots", "buddies", "host")
    )


def fork_server(rank: Process) -> int:
    """All ranks of a pod are its forks, and have the limits that it has."""
    return int(_status(rank.pid)["PPid"])


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def limit_memory(server: int, more: int) -> None:
    """Its forks may have so many bytes more than it has itself; those that it has are not touched."""
    most = int(_status(server)["VmData"].split()[0]) * 1024 + more
    resource.prlimit(server, resource.RLIMIT_DATA, (most, most))


def test_a_size_that_runs_out_of_memory_goes_on_with_what_needs_less(tmp_path: Path) -> None:
    with LocalLine(nodes=1, state=tmp_path / "line") as line:
        line.apply(small_manifest(tmp_path, **WIDE))
        line.wait_for_step(6)
        first = line.revisions()[0]
        (rank,) = line.ranks(slot=0).values()
        limit_memory(fork_server(rank), int(0.9 * predicted(first)))
        line.kill_rank(slot=0, local_rank=0)
        end = line.wait_for_end()
        revisions = line.revisions()
    assert end.status["progress"]["step"] == STEPS
    assert len(revisions) > 1
    assert end.epochs[-1].revision in [one.name for one in revisions[1:]]
    needed = [predicted(revision) for revision in revisions]
    assert all(after <= 0.9 * before for before, after in pairwise(needed))
    one, newest = revisions[0].rungs[0], revisions[-1].rungs[0]
    assert newest.micro_batch < one.micro_batch
    assert newest.layout == one.layout
    assert newest.micro_batch * newest.accumulation == one.micro_batch * one.accumulation
    # Failing to start took no steps: all went on from the snapshot.
    assert {epoch.restore.source for epoch in end.epochs[1:]} == {RestoreSource.MEMORY}


def test_what_was_measured_is_near_what_was_predicted_and_is_exported(tmp_path: Path) -> None:
    manifest = small_manifest(tmp_path, **WIDE)
    with LocalLine(nodes=1, state=tmp_path / "line") as line:
        line.apply(manifest)
        line.wait_for_end()
        (revision,) = line.revisions()
        state = line.cluster.root
        export = trainingrun(tmp_path, "calibration", "export", "scenario", "--local", str(state))
        machine = trainingrun(tmp_path, "calibration", "machine", "scenario", "--local", str(state))
    (measured,) = json.loads(export.out)["measurements"]
    assert measured["predictedPeakBytes"] == predicted(revision)
    # What is resident is more than what is allocated: freed pieces between others are not given back.
    assert 0.7 < measured["peakBytes"] / measured["predictedPeakBytes"] < 1.6
    assert measured["steps"] == STEPS
    assert 1e-3 < json.loads(machine.out)["fp32Teraflops"] < 1.0
