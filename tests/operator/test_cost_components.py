"""Memory of single layers against published profiles, where the tables of measurements are at hand.

A profile of Llama-2-7B on eight accelerators: one and two layers, so that their difference is a layer's.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from tests.operator.cost_builders import LLAMA_8B, a_workload

from trainingrun.planner.cost.activations import layer_kept
from trainingrun.planner.cost.states import stage_parameters, states
from trainingrun.planner.cost.types import Recompute, Sharding

TABLE = Path(__file__).parents[3] / "shared" / "data" / "component_measurements.csv"
LLAMA_2_7B = replace(LLAMA_8B, intermediate_size=11008, key_value_heads=32, vocabulary_size=32000)

pytestmark = pytest.mark.skipif(not TABLE.exists(), reason="the tables of measurements are not here")


def _layer(strategy: str, quantity: str) -> float:
    """MiB of one layer on rank 0."""
    found = {}
    with TABLE.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if not row["source"].endswith("memory_profiling_bf16_llama2-7b_all.json"):
                continue
            if f"strategy {strategy} " in row["case"] and row["quantity"] == quantity and row["rank"] == "0":
                found[row["layers"]] = float(row["value"])
    return found["2"] - found["1"]


def test_a_layers_states_are_shared_by_eight() -> None:
    work = a_workload(replace(LLAMA_2_7B, layers=1), data=8, sharding=Sharding.WEIGHTS, shard=8)
    parameters = stage_parameters(work, 0)
    held = states(work, parameters)
    share = (parameters.total - parameters.root) / parameters.total
    ours = share * (held.weights + held.gradients + held.optimizer) / (1 << 20)
    assert ours == pytest.approx(_layer("1_1_8_sp", "model_states_MB"), rel=0.01)


def test_a_layer_keeps_as_many_times_its_input_as_was_measured() -> None:
    kept, alone = (_layer(strategy, "activation_MB") for strategy in ("1_1_8_sp", "1_1_8_c_sp"))
    work = a_workload(LLAMA_2_7B, sequence_length=2048)
    ours = layer_kept(work).dense / layer_kept(work, Recompute.FULL).input
    assert ours == pytest.approx(kept / alone, rel=0.01)


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_with_sequence_parallelism_tensor_ranks_keep_as_much_of_as_many_tokens_each(tensor: int) -> None:
    measured = _layer(f"1_{tensor}_{8 // tensor}_sp", "activation_MB") / _layer("1_1_8_sp", "activation_MB")
    one = layer_kept(a_workload(LLAMA_2_7B)).dense
    cut = layer_kept(a_workload(LLAMA_2_7B, tensor=tensor, sequence_parallel=True)).dense
    assert tensor * cut / one == pytest.approx(measured, rel=0.07)
