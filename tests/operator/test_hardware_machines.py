"""Machines from names, from numbers that a user declares, and as the trainer measured them."""

from __future__ import annotations

from typing import Any

import pytest

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware.cpu import CPU
from trainingrun.planner.hardware.declared import declared_machine
from trainingrun.planner.hardware.links import network_of
from trainingrun.planner.hardware.machine import cpu_machine, instance_machine, machine, node_machine


def a_shape(**changes: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "accelerators": 8,
        "memoryGiB": 94,
        "memoryBandwidthGBs": 4000,
        "bf16Teraflops": 800,
        "localLinkGBs": 400,
        "networkGBs": 50,
    }
    return {key: value for key, value in (shape | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("words", "gigabytes"),
    [
        ("NVLink3 + 4x100Gb/s RoCE per node", 6.25),
        ("NVLink + 1600Gbps RoCE/node", 25.0),
        ("NVLink + 400Gb/s per GPU IB", 50.0),
        ("NVLink3 + 800Gb/s per node IB", 12.5),
        ("NVLink5 + 8x800Gb/s", 100.0),
        ("NVLink2 + OPA 100Gb/s", 1.5625),
    ],
)
def test_words_for_a_network_become_the_share_of_one_accelerator(words: str, gigabytes: float) -> None:
    assert network_of(words, 8) == pytest.approx(gigabytes * 1e9)


def test_words_that_give_no_number_take_the_usual_network_of_the_accelerator() -> None:
    assert network_of("NVLink (+IB)", 8) is None
    assert machine("H100-SXM-80GB", 8, "NVLink (+IB)") == machine("NVIDIA-H100-80GB-HBM3", 8)


def test_names_of_tables_and_labels_are_one_machine() -> None:
    found = machine("GB200-NVL72-186GB", 4, "NVL72 NVLink5 + IB")
    assert (found.name, found.accelerators, found.domain) == ("NVIDIA-GB200", 4, 72)
    assert found.peak_flops["bf16"] == 2500e12
    assert found.measured_flops["bf16"] == 1822e12
    assert found.memory_bytes == int(184.3 * (1 << 30))


def test_accelerators_without_bfloat16_have_no_rate_for_it() -> None:
    found = machine("V100-SXM2-32GB", 4)
    assert "bf16" not in found.peak_flops
    assert found.peak_flops["fp16"] == 125e12


def test_an_instance_type_brings_its_accelerators_and_network() -> None:
    found = instance_machine("a3-megagpu-8g", price_per_hour=90.0)
    assert (found.name, found.accelerators, found.price_per_hour) == ("NVIDIA-H100-80GB-HBM3", 8, 90.0)
    assert found.between.bytes_per_second == pytest.approx(0.85 * 25e9)


def test_a_node_is_known_by_its_labels() -> None:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "node.kubernetes.io/instance-type": "a3-highgpu-8g",
    }
    found = node_machine(labels, 8)
    assert found is not None
    assert found.between.bytes_per_second == pytest.approx(0.85 * 12.5e9)  # not the 50 of other clouds
    # Half of the node's accelerators share all of its network.
    half = node_machine(labels, 4)
    assert half is not None
    assert half.between.bytes_per_second == pytest.approx(2 * found.between.bytes_per_second)
    assert node_machine({"node.kubernetes.io/instance-type": "m5.large"}, 0) is None
    with pytest.raises(PlanInputError, match="take turns"):
        node_machine({"nvidia.com/gpu.product": "NVIDIA-L4-SHARED"}, 1)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(PlanInputError, match="H900"):
        machine("H900")
    with pytest.raises(PlanInputError, match=r"m5\.large"):
        instance_machine("m5.large")
    with pytest.raises(PlanInputError, match="at least one"):
        machine("H100-SXM-80GB", -1)


def test_cpu_processes_share_the_cores_and_the_memory() -> None:
    found = cpu_machine(4, 8, 64 << 30)
    assert found.peak_flops["fp32"] == 2 * CPU.fp32_flops_per_core
    assert found.memory_bytes == 16 << 30


def test_a_declared_machine_has_the_numbers_that_were_given() -> None:
    found = declared_machine(a_shape(fp8Teraflops=1600, pricePerHour=20))
    assert (found.accelerators, found.memory_bytes, found.price_per_hour) == (8, 94 << 30, 20)
    assert found.peak_flops == {"bf16": 800e12, "fp16": 800e12, "fp8": 1600e12, "mxfp8": 1600e12}
    assert found.inside.bytes_per_second == 400e9


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"memoryGiB": None}, "memoryGiB"),
        ({"memoryGiB": 80e9}, "memoryGiB"),  # bytes instead of GiB
        ({"bf16Teraflops": -1}, "bf16Teraflops"),
        ({"bf16Teraflops": "fast"}, "bf16Teraflops"),
        ({"networkGBs": float("nan")}, "networkGBs"),
        ({"accelerators": True}, "accelerators"),
        ({"networkGBs": 900}, "localLinkGBs"),  # strangers faster than neighbours
        ({"memoryGB": 80}, "memoryGB"),  # a field that there is not
    ],
)
def test_an_absurd_shape_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanInputError) as caught:
        declared_machine(a_shape(**changes))
    assert caught.value.path == f"hardware.{field}"
    assert caught.value.fix


def test_a_declared_machine_may_train_on_its_cores() -> None:
    assert declared_machine(a_shape(device="cpu")).name == "cpu"
    with pytest.raises(PlanInputError, match="use accelerator or cpu"):
        declared_machine(a_shape(device="tpu"))


def test_numbers_beyond_all_bounds_are_refused_by_field() -> None:
    with pytest.raises(PlanInputError, match="cannot be the memory"):
        declared_machine(a_shape(memoryGiB=10**400))
