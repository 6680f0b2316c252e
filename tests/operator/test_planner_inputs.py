"""From the resolved spec to shapes, and back to JSON; accelerators that are known, unknown, or not named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from trainingrun.planner.describe import describe
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware.cpu import CPU
from trainingrun.planner.hardware.gpus import GPUS, Gpu
from trainingrun.planner.inputs import model_shape, planner_inputs
from trainingrun.planner.parameters import count_parameters
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
    assert inventory.node.flops_per_second == CPU.fp32_flops_per_core / 2  # half a core each


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
    assert inventory.node.flops_per_second == CPU.fp64_flops_per_core / 2


def test_a_vocabulary_of_unknown_size_is_an_error() -> None:
    spec = a_spec()
    spec["model"]["tokenizer"] = {"uri": "file:///tok", "train": None}
    with pytest.raises(PlanInputError) as caught:
        planner_inputs(spec)
    assert caught.value.path == "spec.model.config.vocab_size"
    spec["model"]["config"]["vocab_size"] = 5000
    assert planner_inputs(spec)[0].vocabulary_size == 5000


@pytest.mark.parametrize("entry", GPUS, ids=lambda entry: entry.name)
def test_every_accelerator_of_the_catalogue_can_be_planned_for_offline(entry: Gpu) -> None:
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


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("a100-sxm4-80", "NVIDIA-A100-SXM4-80GB"),
        ("tesla-v100-32", "Tesla-V100-SXM2-32GB"),
        ("NVIDIA-RTX4090", "NVIDIA-GeForce-RTX-4090"),
    ],
)
def test_an_accelerator_by_another_name_gets_the_nearest_first(name: str, nearest: str) -> None:
    with pytest.raises(PlanInputError) as caught:
        planner_inputs(a_spec(**{"nvidia.com/gpu": "8"}), accelerator_name=name)
    assert f"{name} is not an accelerator that the planner knows as nvidia.com/gpu; nearest: {nearest}, " in (
        caught.value.message
    )


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


GPT2 = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
QWEN2 = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
QWEN3 = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
MISTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
GEMMA = {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("kind", "config", "published"),
    [
        ("gpt2", GPT2 | {"vocab_size": 50257, "max_position_embeddings": 1024}, 124_439_808),
        (
            "qwen2",
            QWEN2 | {"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
            494_032_768,
        ),
        (
            "qwen3",
            QWEN3 | {"num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": True},
            596_049_920,
        ),
        ("mistral", MISTRAL | {"num_key_value_heads": 8, "vocab_size": 32000}, 7_241_732_096),
        ("gemma", GEMMA | {"num_key_value_heads": 1, "vocab_size": 256000}, 2_506_172_416),
    ],
    ids=["GPT-2", "Qwen2-0.5B", "Qwen3-0.6B", "Mistral-7B", "Gemma-2B"],
)
def test_parameters_of_every_family_are_those_that_were_published(
    kind: str, config: dict[str, int], published: int
) -> None:
    model = {"model_type": kind, "max_position_embeddings": 4096, **config}
    assert count_parameters(model_shape({"model": {"config": model}})) == published
