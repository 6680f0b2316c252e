"""Plans of the engine DeepSpeed: all ranks share the state, at one size, at the lowest stage of ZeRO that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.api_builders import BASE, manifest
from tests.operator.planner_builders import GIB, a_model, a_node, a_training, h100_node, llama, machines

from trainingrun.api.load import parse, resolve
from trainingrun.planner.errors import NothingFits, PlanInputError
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import memory_bill
from trainingrun.planner.nearby import nearby
from trainingrun.planner.parameters import stage_parameters
from trainingrun.planner.search import plan
from trainingrun.planner.types import MemoryBill, PlanPath, TrainingShape
from trainingrun.planner.zero import traffic

MIB = 1 << 20


def zero(**changes: Any) -> TrainingShape:
    return a_training(**{"engine": "DeepSpeed", "pinned": {}, **changes})


def planned(training: TrainingShape, memory: int = GIB, nodes: int = 2, model: Any = None) -> PlanPath:
    return plan(model or a_model(), training, machines(a_node(2, memory), nodes, nodes))


def a_large_model() -> Any:
    return llama(1024, 4096, 8, 16, 16, 8192)


def test_the_path_has_one_rung_in_which_all_ranks_share_the_state() -> None:
    path = planned(zero())
    (rung,) = [one.rung for one in path.rungs]
    assert (rung.nodes, rung.world, rung.shard, rung.replicate) == (2, 4, 4, 1)
    assert (rung.engine, rung.zero_stage, rung.layout) == ("DeepSpeed", 1, (1, 4, 1))
    assert rung.state_copies == 1, "a lost node takes a part of the only copy"
    assert "so the run keeps its size" in " ".join(path.rungs[0].reasons)


def test_a_run_without_the_engine_has_no_stage() -> None:
    rung = plan(a_model(), a_training(), machines()).rungs[0].rung
    assert (rung.engine, rung.zero_stage) == ("Native", 0)


def test_two_sizes_are_refused_with_both() -> None:
    with pytest.raises(PlanInputError) as refused:
        plan(a_model(), zero(), machines(a_node(), 1, 2))
    assert refused.value.path == "spec.scale.minNodes"
    assert "has one size, but 1 is not spec.scale.maxNodes (2)" in refused.value.message
    assert "set both to 1 or 2" in refused.value.fix


def bill(
    stage: int, *, precision: int = 4, shard: int = 4, offload: str = "None", node: Any = None
) -> MemoryBill:
    training = zero(compute_bytes=precision, offload=offload)
    cut = Cut(1, shard, 1, zero=stage)
    return memory_bill(
        a_large_model(), training, node or a_node(), cut, replicate=1, micro_batch=1, accumulation=2
    )


def test_each_stage_needs_less_than_the_one_before() -> None:
    for precision in (4, 2):
        first, second, third = (bill(stage, precision=precision) for stage in (1, 2, 3))
        assert first.total > second.total > third.total
        assert first.optimizer == second.optimizer == third.optimizer
        assert first.gradients > second.gradients == third.gradients
        assert first.weights == second.weights > third.weights


def test_a_process_can_hold_the_whole_weights_that_it_starts_with_however_many_ranks_there_are() -> None:
    whole = 4 * stage_parameters(a_large_model(), 1, 0, 1).total
    for shard in (1, 4, 64, 1024):
        assert bill(3, shard=shard).total >= whole + bill(3, shard=shard).weights


def test_the_lowest_stage_that_fits_is_taken_and_a_pinned_one_is_kept() -> None:
    needs = [bill(stage).total for stage in (1, 2, 3)]
    model = a_large_model()
    for stage, need in enumerate(needs, start=1):
        path = planned(zero(), memory=int(need * 1.05) + MIB, model=model)
        assert path.rungs[0].rung.zero_stage == stage, path.reason
        assert f"ZeRO {stage}" in path.reason
    assert planned(zero(zero_stage=3), memory=8 * GIB, model=model).rungs[0].rung.zero_stage == 3
    with pytest.raises(NothingFits, match="a process needs at least"):
        planned(zero(zero_stage=1), memory=int(needs[2] * 1.05), model=model)


def test_when_nothing_fits_the_advice_does() -> None:
    with pytest.raises(NothingFits) as refused:
        planned(zero(global_batch_sequences=64), memory=GIB, model=a_large_model())
    words = refused.value.message
    nodes = int(words.split("minNodes and maxNodes ")[1].split(",")[0].split()[0])
    assert nodes > 2
    path = planned(zero(global_batch_sequences=64), memory=GIB, nodes=nodes, model=a_large_model())
    assert path.rungs[0].rung.nodes == nodes


def test_offload_moves_state_to_the_host_of_accelerators_and_is_nothing_without_them() -> None:
    assert bill(2, offload="Optimizer") == bill(2)
    kept, moved = (bill(2, offload=offload, node=h100_node()) for offload in ("None", "Optimizer"))
    assert moved.total < kept.total
    assert moved.host > kept.host
    all_moved = bill(3, offload="OptimizerAndParameters", precision=2, node=h100_node())
    assert all_moved.total < bill(3, offload="Optimizer", precision=2, node=h100_node()).total
    for one in (kept, moved, all_moved):
        assert min(one.weights, one.gradients, one.optimizer, one.buffers) >= 0


def test_offload_of_parameters_means_stage_3() -> None:
    assert planned(zero(offload="OptimizerAndParameters")).rungs[0].rung.zero_stage == 3


def test_a_batch_with_fewer_sequences_than_ranks_is_refused() -> None:
    with pytest.raises(PlanInputError, match="2 nodes x 2 processes = 4 data ranks need 4 sequences"):
        planned(zero(global_batch_sequences=3))


def test_higher_stages_move_more() -> None:
    """With one micro-batch the second moves as much as the first."""
    parameters = stage_parameters(a_large_model(), 1, 0, 1)
    once, often = (
        [traffic(zero(), parameters, Cut(1, 4, 1, zero=stage), accumulation)[0] for stage in (1, 2, 3)]
        for accumulation in (1, 4)
    )
    assert once[0] == once[1] < once[2]
    assert once[0] == often[0] < often[1] < often[2]


def test_the_neighbours_are_the_other_stages_and_other_micro_batches() -> None:
    training = zero()
    inventory = machines(a_node(), 2, 2)
    path = plan(a_model(), training, inventory)
    names = [one.name for one in nearby(a_model(), training, inventory.node, path.rungs[0].rung)]
    assert names[:2] == ["ZeRO 2", "ZeRO 3"]
    assert all(name.startswith("micro-batch") for name in names[2:])


def test_the_specification_says_engine_stage_and_offload() -> None:
    changes = (
        ("spec/parallelism", {"engine": "DeepSpeed", "deepspeed": {"zeroStage": 3, "offload": "Optimizer"}}),
        ("spec/scale", {"minNodes": 2, "maxNodes": 2}),
    )
    model, training, inventory = planner_inputs(resolve(parse(manifest(*changes), BASE), BASE))
    assert (training.engine, training.zero_stage, training.offload) == ("DeepSpeed", 3, "Optimizer")
    assert plan(model, training, inventory).rungs[0].rung.zero_stage == 3
    assert replace(training, engine="Native") != training
