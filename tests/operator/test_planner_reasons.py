"""The reason of a plan: what it says of other cuts is true of the cut that it names, and short."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.operator.planner_builders import GIB, LLAMA_2_70B, LLAMA_3_8B, a_training, h100_node, machines

from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import memory_bill
from trainingrun.planner.search import plan
from trainingrun.planner.text import human_bytes

TRAINING = a_training(
    sequence_length=4096,
    global_batch_sequences=1024,
    compute_bytes=2,
    activation_checkpointing="Auto",
    any_schedule=True,
)
NODE = replace(h100_node(), host_memory_bytes=0)


def test_the_reason_says_whether_less_model_parallelism_does_not_fit_or_is_slower() -> None:
    """The figure is of one cut, and can be had again for that cut."""
    does_not = plan(LLAMA_2_70B, TRAINING, machines(NODE, 1, 8)).reason
    found = re.search(
        r": tensor 1, pipeline 1, shard 64, micro-batch (\d+), recompute Full needs (.+) a process, of ",
        does_not,
    )
    assert found is not None
    size = int(found[1])
    bill = memory_bill(
        LLAMA_2_70B,
        replace(TRAINING, activation_checkpointing="Full"),
        NODE,
        Cut(1, 64, 1),
        replicate=2,
        micro_batch=size,
        accumulation=-(-1024 // (64 * size)),
    )
    assert human_bytes(bill.total) == found[2]
    slower = plan(LLAMA_3_8B, TRAINING, machines(NODE, 1, 1)).reason
    assert re.search(r"tensor 1, pipeline 1, shard 8, micro-batch 1, .+ fits, but is \d+ % slower", slower)
    assert max(len(does_not), len(slower)) < 280


def test_a_copy_over_more_nodes_for_the_sake_of_host_memory_says_so() -> None:
    host = replace(NODE, host_memory_bytes=256 * GIB)
    path = plan(LLAMA_3_8B, TRAINING, machines(host, 4, 16))
    assert (
        "a copy takes 2 nodes (on 1 it needs 269 GiB of host memory a node for snapshots, of 240 GiB)"
        in path.reason
    )
    assert "host memory" not in plan(LLAMA_3_8B, TRAINING, machines(NODE, 4, 16)).reason
    large = plan(LLAMA_2_70B, TRAINING, machines(host, 8, 64)).reason
    assert re.search(
        r"a copy takes 16 nodes \(on \d+ it needs \d+ GiB of host memory a node for snapshots", large
    )
