"""What is said when nothing fits: the whole sum, and the nearest that would."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.operator.planner_builders import LLAMA_2_70B, LLAMA_3_8B, a_training, h100_node, machines

from trainingrun.planner.errors import NothingFits
from trainingrun.planner.search import plan

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def refused(**changes: object) -> str:
    training = a_training(
        **{"sequence_length": 8192, "global_batch_sequences": 2048, "compute_bytes": 2, **changes}
    )
    with pytest.raises(NothingFits) as caught:
        plan(replace(LLAMA_2_70B, max_position_embeddings=1 << 20), training, machines(h100_node(), 1, 4))
    return caught.value.message


def test_the_sum_is_whole() -> None:
    said = re.search(r"needs at least (.*) = ([0-9.]+) (\w+) with", refused())
    assert said is not None
    parts = re.findall(r"([0-9.]+) (\w+)", said[1])
    assert len(parts) >= 5
    total = sum(float(number) * UNITS[unit] for number, unit in parts)
    assert total == pytest.approx(float(said[2]) * UNITS[said[3]], rel=0.01)


def test_computing_layers_twice_is_advised_where_that_would_do_and_works() -> None:
    assert "parallelism.activationCheckpointing Full" in refused()
    full = a_training(
        sequence_length=8192, global_batch_sequences=2048, compute_bytes=2, activation_checkpointing="Full"
    )
    assert plan(LLAMA_2_70B, full, machines(h100_node(), 1, 4)).rungs


def test_what_would_not_help_is_not_advised() -> None:
    assert "maxNodes" not in refused()
    assert "activationCheckpointing" not in refused(activation_checkpointing="Full", sequence_length=1 << 18)


def test_more_nodes_are_advised_where_a_copy_needs_them_and_work() -> None:
    training = a_training(sequence_length=4096, global_batch_sequences=512, compute_bytes=2)
    node = h100_node()
    with pytest.raises(NothingFits) as caught:
        plan(LLAMA_2_70B, training, machines(node, 1, 1))
    nodes = re.search(r"maxNodes (\d+)", caught.value.message)
    assert nodes is not None
    assert plan(LLAMA_2_70B, training, machines(node, 1, int(nodes[1]))).rungs
    assert plan(LLAMA_3_8B, training, machines(node, 1, 1)).rungs
