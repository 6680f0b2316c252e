"""Labels of nodes tell which accelerator they have; slices, shared ones and mixtures are refused with the reason."""

from __future__ import annotations

import pytest

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware import gpus
from trainingrun.planner.hardware.instances import INSTANCES
from trainingrun.planner.hardware.labels import gpu_of, one_product


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "NVIDIA-H100-80GB-HBM3"),
        ({"nvidia.com/gpu.product": "A100-SXM4-40GB"}, "NVIDIA-A100-SXM4-40GB"),  # of an old driver
        ({"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB"}, "Tesla-V100-SXM2-32GB"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "AMD_Instinct_MI300X_OAM"),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-a100"}, "NVIDIA-A100-SXM4-40GB"),
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}, "NVIDIA-H100-80GB-HBM3"),
        ({"node.kubernetes.io/instance-type": "p4de.24xlarge"}, "NVIDIA-A100-SXM4-80GB"),
        ({"node.kubernetes.io/instance-type": "Standard_ND96isr_H200_v5"}, "NVIDIA-H200"),
        ({"k8s.amazonaws.com/accelerator": "nvidia-tesla-t4"}, "Tesla-T4"),
        ({"karpenter.k8s.aws/instance-gpu-name": "l40s"}, "NVIDIA-L40S"),
    ],
)
def test_labels_of_all_clouds_name_the_accelerator(labels: dict[str, str], name: str) -> None:
    found = gpu_of(labels)
    assert found is not None
    assert found.name == name


def test_what_the_product_label_says_comes_before_the_instance_type() -> None:
    labels = {"node.kubernetes.io/instance-type": "p4d.24xlarge", "nvidia.com/gpu.product": "NVIDIA-H200"}
    found = gpu_of(labels)
    assert found is not None
    assert found.name == "NVIDIA-H200"


def test_a_node_without_accelerator_labels_has_none() -> None:
    assert gpu_of({"node.kubernetes.io/instance-type": "m5.large"}) is None


@pytest.mark.parametrize(
    ("labels", "key", "reason"),
    [
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-SHARED"},
            "nvidia.com/gpu.product",
            "take turns",
        ),
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"},
            "nvidia.com/gpu.product",
            "slices",
        ),
        (
            {"nvidia.com/gpu.product": "NVIDIA-L4", "nvidia.com/gpu.sharing-strategy": "mps"},
            "nvidia.com/gpu.sharing-strategy",
            "shared",
        ),
        (
            {
                "cloud.google.com/gke-accelerator": "nvidia-l4",
                "cloud.google.com/gke-gpu-partition-size": "1g.5gb",
            },
            "cloud.google.com/gke-gpu-partition-size",
            "a slice",
        ),
    ],
)
def test_shared_and_sliced_accelerators_are_refused(labels: dict[str, str], key: str, reason: str) -> None:
    with pytest.raises(PlanInputError, match=reason) as caught:
        gpu_of(labels)
    assert caught.value.path == key
    assert caught.value.fix


def test_an_unknown_product_names_the_known_ones_of_its_vendor() -> None:
    with pytest.raises(PlanInputError, match="NVIDIA-H900") as caught:
        gpu_of({"nvidia.com/gpu.product": "NVIDIA-H900"})
    assert "NVIDIA-H100-80GB-HBM3" in caught.value.fix
    assert "MI300X" not in caught.value.fix


def test_different_accelerators_in_one_job_are_refused_by_name() -> None:
    nodes = [{"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, {"nvidia.com/gpu.product": "NVIDIA-H200"}]
    with pytest.raises(PlanInputError, match="NVIDIA-A100-SXM4-80GB, NVIDIA-H200") as caught:
        one_product(nodes)
    assert caught.value.fix.endswith("nvidia.com/gpu.product: NVIDIA-H200")


def test_two_spellings_of_one_accelerator_are_one() -> None:
    nodes = [
        {"nvidia.com/gpu.product": "A100-SXM4-80GB"},
        {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"},
    ]
    found = one_product([*nodes, {}])
    assert found is not None
    assert found.name == "NVIDIA-A100-SXM4-80GB"


def test_every_instance_type_has_an_accelerator_of_the_table() -> None:
    assert {found.gpu for found in INSTANCES} <= {gpu.name for gpu in gpus.GPUS}


def test_no_two_accelerators_answer_to_one_name() -> None:
    names = [name for gpu in gpus.GPUS for name in {one.lower() for one in (gpu.name, *gpu.other_names)}]
    assert len(names) == len(set(names))
    for gpu in gpus.GPUS:
        for name in (gpu.name, *gpu.other_names):
            assert gpus.find(name) is gpu


def test_memory_is_never_the_number_of_the_data_sheet() -> None:
    for gpu in gpus.GPUS:
        for marketed in (40, 80, 96, 141, 192, 256, 288):
            assert gpu.memory_gib != marketed, gpu.name


def test_nothing_that_was_measured_is_faster_than_its_data_sheet() -> None:
    for gpu in gpus.GPUS:
        assert gpu.measured_bf16_flops <= gpu.bf16_flops, gpu.name
        assert gpu.measured_fp8_flops <= gpu.fp8_flops, gpu.name
