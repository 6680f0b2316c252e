"""From the resolved spec to shapes, and back to JSON; accelerators that are known, unknown, or not named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from trainingrun.planner import catalogue
from trainingrun.planner.describe import describe
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.search import plan

GOLDEN = Path(__file__).parents[1] / "golden" / "resolved-spec.json"


def a_spec(**per_node: str) -> dict[str, Any]:
    """The golden spec, with other resources when they are given."""
    spec: dict[str, Any] = copy.deepcopy(json.loads(GOLDEN.read_text()))
    if per_node:
        spec["resources"] = {"perNode": {"cpu": "8", "memory": "900Gi", **per_node}, "processesPerNode": None}
    return spec


def test_the_golden_spec_gives_the_shapes_that_it_says() -> None:
    model, training, inventory = planner_inputs(a_spec())
    assert (model.hidden_size, model.layers, model.head_dim, model.vocabulary_size) == (128, 4, 32, 1024)
    assert (model.key_value_heads, model.tied_embeddings) == (2, False)
    assert (training.global_batch_sequences, training.sequence_length, training.parameter_bytes) == (
        32,
        128,
        4,
    )
    assert training.pinned == {}
    assert (inventory.min_nodes, inventory.max_nodes) == (1, 2)
    assert (inventory.node.processes, inventory.node.memory_bytes) == (2, 4 << 30)
    assert inventory.node.flops_per_second == catalogue.CPU.fp32_flops_per_core / 2  # half a core each


def test_a_batch_in_tokens_is_counted_in_sequences() -> None:
    spec = a_spec()
    spec["training"]["globalBatch"] = {"tokens": 4096, "sequences": None}
    assert planner_inputs(spec)[1].global_batch_sequences == 32


def test_keys_that_transformers_has_defaults_for_may_be_left_out() -> None:
    spec = a_spec()
    for key in ("num_key_value_heads", "tie_word_embeddings"):
        del spec["model"]["config"][key]
    model = planner_inputs(spec)[0]
    assert (model.key_value_heads, model.tied_embeddings) == (4, False)


def test_double_precision_takes_twice_the_bytes_and_half_the_speed() -> None:
    spec = a_spec()
    spec["training"]["precision"] = "FP64"
    _, training, inventory = planner_inputs(spec)
    assert training.parameter_bytes == 8
    assert inventory.node.flops_per_second == catalogue.CPU.fp64_flops_per_core / 2


def test_a_vocabulary_of_unknown_size_is_an_error() -> None:
    spec = a_spec()
    spec["model"]["tokenizer"] = {"uri": "file:///tok", "train": None}
    with pytest.raises(PlanInputError) as caught:
        planner_inputs(spec)
    assert caught.value.path == "spec.model.config.vocab_size"
    spec["model"]["config"]["vocab_size"] = 5000
    assert planner_inputs(spec)[0].vocabulary_size == 5000


@pytest.mark.parametrize("entry", catalogue.ACCELERATORS, ids=lambda entry: entry.name)
def test_every_accelerator_of_the_catalogue_can_be_planned_for_offline(entry: catalogue.Accelerator) -> None:
    spec = a_spec(**{entry.resource: "8"})
    path = plan(*planner_inputs(spec, accelerator_name=entry.name))
    assert path.rungs[-1].rung.world == 16
    assert path.rungs[-1].available_bytes == int(entry.memory_gib * (1 << 30))
    assert path.rungs[-1].memory.snapshots == 0
    assert path.rungs[-1].memory.host > 0


def test_an_unknown_resource_names_the_known_ones() -> None:
    with pytest.raises(PlanInputError, match=r"acme.example/npu") as caught:
        planner_inputs(a_spec(**{"acme.example/npu": "8"}))
    assert caught.value.fix == "use one of: amd.com/gpu, nvidia.com/gpu"


@pytest.mark.parametrize("name", [None, "NVIDIA-H900", "AMD_Instinct_MI300X_OAM"])
def test_an_accelerator_that_is_not_named_or_not_known_names_the_known_ones(name: str | None) -> None:
    with pytest.raises(PlanInputError) as caught:
        planner_inputs(a_spec(**{"nvidia.com/gpu": "8"}), accelerator_name=name)
    assert caught.value.path == "spec.resources.perNode[nvidia.com/gpu]"
    assert "NVIDIA-H100-80GB-HBM3" in caught.value.fix
    assert "MI300X" not in caught.value.fix


def test_a_plan_as_json_has_every_figure_of_the_path() -> None:
    path = plan(*planner_inputs(a_spec()))
    document = json.loads(json.dumps(describe(path)))
    assert document["parameters"] == 1_049_728
    assert [rung["nodes"] for rung in document["rungs"]] == [1, 2]
    rung = document["rungs"][1]
    assert rung["axes"] == {"pipeline": 1, "data": 4, "replicate": 2, "shard": 2, "context": 1, "tensor": 1}
    bill = rung["memory"]
    assert bill["total"] == sum(size for part, size in bill.items() if part not in ("total", "host"))
    assert len(rung["reasons"]) == 4
