"""Names that people type for machines: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

import pytest

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware.gpus import GPUS
from trainingrun.planner.hardware.instances import INSTANCES
from trainingrun.planner.hardware.naming import named_machine, nearest, resource_of, short_name


@pytest.mark.parametrize(
    ("text", "name", "accelerators"),
    [
        ("h100x8", "NVIDIA-H100-80GB-HBM3", 8),
        ("H100 x 4", "NVIDIA-H100-80GB-HBM3", 4),
        ("h100:2", "NVIDIA-H100-80GB-HBM3", 2),
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-80GB-HBM3", 8),
        ("a100", "NVIDIA-A100-SXM4-80GB", 8),
        ("a100-40gbx8", "NVIDIA-A100-SXM4-40GB", 8),
        ("h100-pcie", "NVIDIA-H100-PCIe", 8),
        ("gb200", "NVIDIA-GB200", 4),
        ("mi300x", "AMD_Instinct_MI300X_OAM", 8),
        ("mi300xx8", "AMD_Instinct_MI300X_OAM", 8),
        ("rtx4090x2", "NVIDIA-GeForce-RTX-4090", 2),
        ("rtx-4090", "NVIDIA-GeForce-RTX-4090", 8),
        ("p5.48xlarge", "NVIDIA-H100-80GB-HBM3", 8),
        ("Standard_ND96isr_H100_v5", "NVIDIA-H100-80GB-HBM3", 8),
    ],
)
def test_short_forms_labels_and_instance_types_name_a_machine(
    text: str, name: str, accelerators: int
) -> None:
    found = named_machine(text)
    assert (found.name, found.accelerators) == (name, accelerators)


def test_every_accelerator_and_every_instance_type_has_a_name_that_means_it() -> None:
    for gpu in GPUS:
        assert named_machine(short_name(gpu)).name == gpu.name
        assert named_machine(f"{gpu.name}x2").accelerators == 2
        assert resource_of(named_machine(gpu.name)) == gpu.resource
    for one in INSTANCES:
        assert named_machine(one.name).accelerators == one.accelerators


def test_a_number_that_the_name_does_not_say_is_that_of_the_manifest() -> None:
    assert named_machine("h100", per_node=4).accelerators == 4
    assert named_machine("h100x8", per_node=4).accelerators == 8


def test_instance_types_bring_their_own_network() -> None:
    assert named_machine("a3-highgpu-8g").between != named_machine("p5.48xlarge").between


def test_a_name_that_fits_several_is_not_guessed() -> None:
    with pytest.raises(PlanInputError, match="sxm4 may be one of 3") as caught:
        named_machine("sxm4")
    assert "NVIDIA-A100-SXM4-40GB" in caught.value.message
    assert caught.value.fix.startswith("say which: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h1000x8", "h1000 is not hardware that the planner knows; nearest: h100"),
        ("ND96isr_H100_v5", "nearest: Standard_ND96isr_H100_v5"),
        ("", "no hardware is named"),
        ("h100x800", "800 accelerators in one node: no node has so many"),
        ("h100x0", "0 accelerators in one node: a node has at least 1"),
        ("p5.48xlargex4", "a node of p5.48xlarge has 8 accelerators, not 4"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "slices of an accelerator have no links"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "pods take turns on it"),
    ],
)
def test_what_is_no_machine_is_refused_with_the_nearest(text: str, words: str) -> None:
    with pytest.raises(PlanInputError) as caught:
        named_machine(text)
    assert words in str(caught.value)
    assert caught.value.fix


def test_the_nearest_names_are_always_the_same() -> None:
    assert nearest("h101") == nearest("h101")
    assert nearest("h101")[0] == "h100"
