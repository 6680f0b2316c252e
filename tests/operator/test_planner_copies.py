"""When nodes keep each other's snapshots, what that takes, and that a plan without says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.operator.planner_builders import GIB, LLAMA_3_8B, a_model, a_node, a_training, h100_node, machines

from trainingrun.planner.describe import describe_rung
from trainingrun.planner.inputs import training_shape
from trainingrun.planner.search import plan
from trainingrun.planner.types import NodeShape, PlannedRung

GOLDEN = Path(__file__).parents[1] / "golden/resolved-spec.json"
LAYER = 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336 + 2 * 4096  # of LLAMA_3_8B
STAGES = {"pinned": {"pipeline": 2}}


def planned(node: NodeShape, *, nodes: int = 2, copies: int = 2, **training: Any) -> PlannedRung:
    """A pipeline of two stages, over nodes of one process unless `node` has more."""
    shape = a_training(memory_copies=copies, **{**STAGES, **training})
    return plan(a_model(), shape, machines(node, max_nodes=nodes)).rungs[-1]


def test_stages_on_nodes_of_their_own_keep_each_other_s_snapshots() -> None:
    found = planned(a_node(processes=1))
    assert (found.rung.replicate, found.rung.state_copies, found.rung.buddies) == (1, 2, True)
    # The last stage is as full as the first: a layer of 36,992 parameters, 256 x 64 of a matrix, and a norm.
    assert found.memory.buddies == 2 * 12 * (36_992 + 256 * 64 + 64)
    assert found.memory.total == planned(a_node(processes=1), copies=1).memory.total + found.memory.buddies
    assert any("each node keeps the snapshots of a buddy too" in reason for reason in found.reasons)
    assert describe_rung(found)["stateCopies"] == 2
    assert describe_rung(found)["buddies"] is True


def test_memory_that_does_not_hold_them_is_said_and_costs_nothing_else() -> None:
    # Two sequences, one for each micro-batch that a pipeline of two needs: nothing else can be saved.
    batch = {"global_batch_sequences": 2}
    roomy = planned(a_node(processes=1), **batch)
    needed = roomy.memory.total
    enough = planned(a_node(processes=1, memory_per_process=int(needed / 0.96) + 2), **batch)
    assert enough.rung == roomy.rung
    found = planned(a_node(processes=1, memory_per_process=int(needed / 0.96) - 1000), **batch)
    assert (found.rung.state_copies, found.rung.buddies, found.memory.buddies) == (1, False, 0)
    assert found.memory.total == needed - roomy.memory.buddies
    (why,) = (reason for reason in found.reasons if reason.startswith("state copies"))
    assert "does not hold a buddy's snapshots" in why
    assert "more); it restores from the durable checkpoint" in why


def test_replicas_make_buddies_needless_and_the_sizes_below_them_have_some() -> None:
    shape = a_training(memory_copies=2, **STAGES)
    path = plan(a_model(), shape, machines(a_node(processes=1), min_nodes=2, max_nodes=4))
    two, three, four = (one.rung for one in path.rungs)
    assert (two.state_copies, two.buddies) == (2, True)
    assert not three.useful
    assert (four.replicate, four.state_copies, four.buddies) == (2, 2, False)
    assert planned(a_node(processes=2)).rung.buddies is False  # each node holds both stages
    alone = planned(a_node(processes=2), nodes=1)
    assert (alone.rung.state_copies, alone.rung.buddies) == (1, False)


def test_who_does_not_want_them_goes_without() -> None:
    found = planned(a_node(processes=1), copies=1)
    assert (found.rung.state_copies, found.rung.buddies) == (1, False)
    assert any("takes a part of the only copy" in reason for reason in found.reasons)


@pytest.mark.parametrize(("host_gib", "kept"), [(900, True), (400, False)])
def test_beside_accelerators_they_are_in_the_memory_of_the_host(host_gib: int, kept: bool) -> None:
    node = replace(h100_node(), host_memory_bytes=host_gib * GIB)
    shape = a_training(
        sequence_length=4096,
        global_batch_sequences=64,
        parameter_bytes=4,
        compute_bytes=2,
        memory_copies=2,
        pinned={"pipeline": 16, "tensor": 1},
    )
    found = plan(LLAMA_3_8B, shape, machines(node, max_nodes=2)).rungs[-1]
    without = plan(LLAMA_3_8B, replace(shape, memory_copies=1), machines(node, max_nodes=2)).rungs[-1]
    assert found.rung.buddies is kept
    assert found.memory.total == without.memory.total
    # The last stage has the largest state, with head and norm, though the first one has the fullest process.
    state = 12 * (2 * LAYER + 128256 * 4096 + 4096)
    assert found.memory.host - without.memory.host == (2 * state if kept else 0)


def test_the_specification_says_how_many_copies_and_without_snapshots_there_are_none() -> None:
    spec = json.loads(GOLDEN.read_text())
    assert training_shape(spec).memory_copies == 2
    for memory in ({"copies": 1}, {"copies": 2, "intervalSteps": 0}):
        spec["checkpoint"]["memory"] = memory
        assert training_shape(spec).memory_copies == 1
