"""Four cases with their memory bills worked out by hand: data alone, tensor, pipeline, and nothing.

The small model: hidden 64, feed-forward 128, 2 layers, 4 heads of 16, 2 key-value heads, vocabulary 256,
FP32. A layer has 64*12*16 + 3*64*128 + 2*64 = 36,992 parameters, the root 2*256*64 + 64 = 32,832, the whole
106,816.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.operator.planner_builders import GIB, a_model, a_node, a_training, h100_node, llama, machines

from trainingrun.api.errors import CliExit
from trainingrun.planner.errors import NothingFits
from trainingrun.planner.search import plan
from trainingrun.planner.types import MemoryBill, PlannedRung


def axes(planned: PlannedRung) -> tuple[int, int, int, int]:
    rung = planned.rung
    return (rung.pipeline, rung.replicate, rung.shard, rung.tensor)


def test_data_parallelism_alone_is_taken_when_it_fits() -> None:
    path = plan(a_model(), a_training(), machines(a_node(memory_per_process=8_000_000)))

    one, two = path.rungs
    assert axes(one) == (1, 1, 2, 1)
    assert axes(two) == (1, 2, 2, 1)
    assert (one.rung.state_copies, two.rung.state_copies) == (1, 2)
    assert path.parameters == 106_816
    # Micro-batch 4 leaves nothing to accumulate on one node, and 2 on two.
    assert (one.rung.micro_batch, one.rung.accumulation) == (4, 1)
    own = 106_816 // 2
    tokens = 4 * 32
    # A layer keeps 4*64 + 2*4*16 + 2*2*16 + 4*128 + 2 + 4*32 = 1090 elements a token; cosine and sine are 2*16, and
    # its backward pass works with 2*64 + 2*128 more.
    assert one.memory == MemoryBill(
        weights=4 * own,
        gradients=4 * own,
        optimizer=8 * own,
        activations=4 * tokens * (2 * 1090 + 32 + 384),
        logits=0,  # gone: the backward pass of a layer is fuller than the loss
        # The root, two layers, and the gradients of the head and of a matrix, which wait to be scattered.
        buffers=4 * (32_832 + 2 * 36_992 + 256 * 64 + 64 * 128),
        reserved=0,
        snapshots=3 * 12 * own,
    )
    # Who joins loads a node's half of weights and moments, from the other node.
    assert (one.join_bytes, two.join_bytes) == (0, 2 * 12 * own)
    assert two.join_seconds == two.join_bytes / 1e9
    assert "data parallelism alone fits" in path.reason


def test_tensor_parallelism_is_taken_when_a_process_cannot_hold_a_sequence() -> None:
    # A sequence of 512 needs 10.6 MB in a process with tensor 1, and 8.2 MB with tensor 2.
    inventory = machines(a_node(memory_per_process=11_000_000))
    path = plan(a_model(), a_training(sequence_length=512), inventory)

    one, two = path.rungs
    assert axes(one) == (1, 1, 1, 2)
    assert axes(two) == (1, 2, 1, 2)
    assert two.rung.state_copies == 2
    # Half of each matrix; norms are whole: 2 * (36,864/2 + 128) + 2*128*64 + 64.
    own = 2 * 18_560 + 16_448
    # 4*64 + 2*2*16 + 2*16 + 4*64 + 2 + 512 + 2 elements a token and layer: the single key head is seen by both others
    # as it is. Cosine and sine are 2*16, the last norm keeps 2*64.
    assert one.memory == MemoryBill(
        weights=4 * own,
        gradients=4 * own,
        optimizer=8 * own,
        activations=4 * 512 * (2 * 1124 + 32 + 128),
        logits=2 * 4 * 512 * 128,  # twice: cut by vocabulary, they do not turn into their gradient in place
        buffers=0,  # nothing is gathered
        reserved=0,
        snapshots=36 * own,
    )
    assert path.reason.startswith(
        "tensor 2, pipeline 1: tensor 1, pipeline 1, shard 2, micro-batch 1, recompute None needs 10.1 MiB a process"
    )
    assert "nearest that fits" in path.reason


def test_pipeline_is_taken_when_heads_cannot_be_split_and_the_vocabulary_is_large() -> None:
    # One key-value head forbids tensor parallelism; two stages keep embedding and head apart.
    model = a_model(key_value_heads=1, vocabulary_size=4096)
    path = plan(model, a_training(sequence_length=64), machines(a_node(memory_per_process=21_000_000)))

    one, two = path.rungs
    assert axes(one) == (2, 1, 1, 1)
    assert axes(two) == (2, 2, 1, 1)
    # Replicate is the slowest axis: each node holds both stages, and so a copy.
    assert (one.rung.state_copies, two.rung.state_copies) == (1, 2)
    # The last stage is the fullest: one layer (64*10*16 + 3*64*128 + 128), norm and head, and the logits.
    own = 34_944 + 64 + 4096 * 64
    # 4*64 + 2*4*16 + 2*16 + 4*128 + 2 + 4*64 = 1186 elements a token; one micro-batch in flight, with cosine and sine.
    # The last norm keeps two hidden states, and the head's backward pass makes the gradient of one.
    assert one.memory == MemoryBill(
        weights=4 * own,
        gradients=4 * own,
        optimizer=8 * own,
        activations=4 * 64 * (1186 + 2 * 16 + 3 * 64),
        logits=4 * 64 * 4096,  # once, in the head's backward pass, which is the fullest moment
        # The head's gradient before it is added, what comes and what leaves, and room for what 8 micro-batches receive.
        buffers=4 * (4096 * 64 + (2 + 8) * 64 * 64),
        reserved=0,
        snapshots=36 * own,
    )
    assert one.bubble == pytest.approx(1 / 9)  # (2 - 1) / (8 + 2 - 1)


def test_when_nothing_fits_the_message_says_what_is_needed_what_is_there_and_what_would_do() -> None:
    model = llama(512, 1408, 8, 16, 8, 1000)
    training = a_training(sequence_length=256, global_batch_sequences=256)
    inventory = machines(a_node(memory_per_process=GIB // 4), max_nodes=2)
    with pytest.raises(NothingFits) as caught:
        plan(model, training, inventory)

    error = caught.value
    assert error.exit_code == CliExit.NOTHING_FITS
    assert error.path == "spec.resources.perNode.memory"
    assert error.available_bytes == GIB // 4
    assert error.bill is not None
    assert error.bill.total > GIB // 4
    assert "no plan fits: a process needs at least" in error.message
    assert "but has 256 MiB, of which 10.2 MiB stay free" in error.message
    nearest = re.search(r"perNode.memory (\d+)Gi, or maxNodes (\d+)", error.message)
    assert nearest is not None

    # The advice is true, and a little less is not enough.
    memory, nodes = int(nearest[1]) * GIB, int(nearest[2])
    plan(model, training, machines(a_node(memory_per_process=memory // 2)))
    plan(model, training, machines(inventory.node, max_nodes=nodes))
    with pytest.raises(NothingFits):
        plan(model, training, machines(a_node(memory_per_process=(memory - GIB) // 2)))
    with pytest.raises(NothingFits):
        plan(model, training, machines(inventory.node, max_nodes=nodes - 1))


def test_a_model_too_large_for_one_node_is_sharded_over_two_and_says_what_a_lost_node_means() -> None:
    # Half of the state and what a sequence needs fit in no process; a quarter of the state does.
    path = plan(a_model(key_value_heads=1), a_training(), machines(a_node(memory_per_process=2_500_000)))

    one, two = path.rungs
    assert not one.rung.useful
    assert one.rung.reason == "1 node does not hold a copy of the state as it is cut: it takes 2"
    assert two.rung.useful
    assert two.rung.state_copies == 1
    assert any("restores from the durable checkpoint" in reason for reason in two.reasons)
    assert "so training starts at 2 nodes" in path.reason


def test_snapshots_of_accelerators_must_fit_beside_them_in_the_memory_of_the_host() -> None:
    node = replace(h100_node(), host_memory_bytes=100 * GIB)
    with pytest.raises(NothingFits) as caught:
        plan(
            llama(4096, 14336, 32, 32, 8, 128256),
            a_training(sequence_length=4096, global_batch_sequences=64),
            machines(node, max_nodes=1),
        )
    assert caught.value.path == "spec.resources.perNode.memory"
    assert "node's memory snapshots need" in caught.value.message
