"""Our own trainer is the same in the cost model as in the planner: one account of memory, whichever door it is asked
at.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.planner_builders import LLAMA_2_70B, LLAMA_3_8B, LLAMA_32_1B, a_training, h100_node

from trainingrun.planner.cost.memory import fullest, peak_memory
from trainingrun.planner.cost.types import Recompute, Sharding
from trainingrun.planner.costing import machine_of, workload_of
from trainingrun.planner.layout import Cut
from trainingrun.planner.memory import memory_bill
from trainingrun.planner.types import ModelShape

CUTS = [Cut(1, 8, 1), Cut(1, 1, 8), Cut(4, 2, 1), Cut(2, 1, 4), Cut(1, 64, 1)]


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("model", [LLAMA_32_1B, LLAMA_3_8B, LLAMA_2_70B], ids=["1B", "8B", "70B"])
@pytest.mark.parametrize("compute_bytes", [2, 4])
@pytest.mark.parametrize("mode", ["None", "Full"])
def test_the_cost_model_of_our_framework_says_what_the_planner_says(
    model: ModelShape, cut: Cut, compute_bytes: int, mode: str
) -> None:
    training = a_training(
        sequence_length=4096,
        global_batch_sequences=512,
        compute_bytes=compute_bytes,
        activation_checkpointing=mode,
    )
    node = h100_node()
    bill = memory_bill(model, training, node, cut, replicate=1, micro_batch=1, accumulation=8)
    work = workload_of(
        model, training, node, cut, micro_batch=1, accumulation=8, recompute=Recompute(mode.lower())
    )
    sharding = Sharding.WEIGHTS if cut.shard > 1 else Sharding.NONE
    layout = replace(work.layout, data=cut.shard, shard=cut.shard, sharding=sharding)
    found = fullest(peak_memory(replace(work, layout=layout)))
    assert found.allocated == pytest.approx(bill.total - bill.reserved, rel=0.05)


def test_a_node_of_the_catalogue_is_its_machine() -> None:
    machine = machine_of(h100_node())
    assert machine.name == "NVIDIA-H100-80GB-HBM3"
    assert machine.accelerators == 8
    assert machine.peak_flops["bf16"] > 9e14
