"""Nodes of a machine that somebody named: the same as those of the manifest, and their own network."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.operator.planner_builders import LLAMA_3_8B, a_training, machines

from trainingrun.planner.costing import machine_of
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware.declared import declared_machine
from trainingrun.planner.hardware.naming import named_machine
from trainingrun.planner.inputs import node_shape
from trainingrun.planner.node_shapes import node_of
from trainingrun.planner.search import plan

SPEC: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "resolved-spec.json").read_text())


def a_spec(precision: str = "BF16", **per_node: Any) -> dict[str, Any]:
    spec = copy.deepcopy(SPEC)
    spec["training"]["precision"] = precision
    spec["resources"]["perNode"] |= per_node
    return spec


@pytest.mark.parametrize("name", ["NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-40GB", "NVIDIA-GB200"])
@pytest.mark.parametrize("precision", ["BF16", "FP32", "FP64"])
def test_a_named_accelerator_is_the_node_that_a_manifest_would_describe(name: str, precision: str) -> None:
    spec = a_spec(precision, cpu="96", memory="900Gi", **{"nvidia.com/gpu": "4"})
    named, described = node_of(named_machine(f"{name}x4"), spec), node_shape(spec, accelerator_name=name)
    own, other = machine_of(named), machine_of(described)
    assert own.between.bytes_per_second == pytest.approx(other.between.bytes_per_second)
    assert own.peak_flops == pytest.approx(other.peak_flops)
    assert (named.memory_bytes, named.host_memory_bytes, named.cores) == (
        described.memory_bytes,
        described.host_memory_bytes,
        described.cores,
    )


def test_an_instance_type_is_as_fast_as_its_own_network() -> None:
    training = a_training(sequence_length=4096, global_batch_sequences=256, compute_bytes=2)
    seconds = {}
    for name in ("a3-highgpu-8g", "p5.48xlarge"):  # the same accelerators, 800 and 3200 Gbit/s a node
        node = node_of(named_machine(name), a_spec())
        seconds[name] = plan(LLAMA_3_8B, training, machines(node, 4, 4)).rungs[0].step_seconds
    assert seconds["a3-highgpu-8g"] > 1.01 * seconds["p5.48xlarge"]


def test_a_declared_machine_keeps_its_figures() -> None:
    shape = {
        "accelerators": 2, "memoryGiB": 64, "memoryBandwidthGBs": 2000, "bf16Teraflops": 400,
        "localLinkGBs": 200, "networkGBs": 25,
    }  # fmt: skip
    node = node_of(declared_machine(shape, name="new"), a_spec())
    found = machine_of(node)
    assert (found.name, found.accelerators, found.memory_bytes) == ("new", 2, 64 << 30)
    assert found.between.bytes_per_second == pytest.approx(25e9)
    assert found.inside.bytes_per_second == pytest.approx(200e9)
    assert found.peak_flops["bf16"] == pytest.approx(400e12)
    with pytest.raises(PlanInputError, match="no rate in FP32"):
        node_of(declared_machine(shape, name="new"), a_spec("FP32"))
