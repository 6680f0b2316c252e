"""From the labels of nodes to the accelerator that they have, or the reason why training refuses them.

Read in this order: NVIDIA's GPU feature discovery and AMD's labeller (which name the product itself), then
GKE's label, then the instance type (EKS, AKS and others name no product, or name it without its memory). A
slice of an accelerator (MIG) or one that pods share in time (-SHARED) has neither the memory nor the rate of
the table, and may stall a collective for as long as a neighbour pleases. Called by whoever looks at nodes;
pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware.gpus import AMD, NVIDIA, Gpu, find, named, resources
from trainingrun.planner.hardware.instances import instance

NVIDIA_PRODUCT = "nvidia.com/gpu.product"
NVIDIA_SHARING = "nvidia.com/gpu.sharing-strategy"
AMD_PRODUCTS = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
GKE = "cloud.google.com/gke-accelerator"
GKE_PARTITION = "cloud.google.com/gke-gpu-partition-size"
GKE_SHARING = "cloud.google.com/gke-gpu-sharing-strategy"
EKS = ("k8s.amazonaws.com/accelerator", "karpenter.k8s.aws/instance-gpu-name")
INSTANCE_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

_PRODUCTS = (NVIDIA_PRODUCT, *AMD_PRODUCTS, GKE, *EKS)
_LABELS_OF = {NVIDIA: (NVIDIA_PRODUCT, GKE, *EKS), AMD: AMD_PRODUCTS}
# EKS names the chip only; which memory goes with it is taken from the instance type first. One product each:
_CHIPS = {
    "v100": "Tesla-V100-SXM2-16GB",
    "t4": "Tesla-T4",
    "a10g": "NVIDIA-A10G",
    "l4": "NVIDIA-L4",
    "l40s": "NVIDIA-L40S",
    "h100": "NVIDIA-H100-80GB-HBM3",
    "h200": "NVIDIA-H200",
    "b200": "NVIDIA-B200",
}


def gpu_of(labels: Mapping[str, str]) -> Gpu | None:
    """The accelerator of a node, or None for a node without. Raises PlanInputError for one that is shared,
    sliced or unknown.
    """
    refuse_slices(labels)
    for key in _PRODUCTS[:4]:
        if key in labels:
            return known(labels[key], key)
    for key in INSTANCE_TYPES:
        found = instance(labels.get(key, ""))
        if found is not None:
            return known(found.gpu, key)
    for key in EKS:
        if key in labels:
            chip = labels[key].lower().removeprefix("nvidia-").removeprefix("tesla-")
            return known(_CHIPS.get(chip, labels[key]), key)
    return None


def known(product: str, key: str) -> Gpu:
    """The table's entry. `key`: the label or field that says `product`."""
    refuse_name(product, key)
    gpu = find(product)
    if gpu is None:
        resource = AMD if key in AMD_PRODUCTS else NVIDIA
        raise PlanInputError(
            key,
            product,
            f"{product} is not an accelerator that the planner knows",
            f"declare its shape, or use one of: {', '.join(named(resource))}",
        )
    return gpu


def refuse_slices(labels: Mapping[str, str]) -> None:
    refuse_name(labels.get(NVIDIA_PRODUCT, ""), NVIDIA_PRODUCT)
    for key, what in (
        (NVIDIA_SHARING, "shared by pods"),
        (GKE_SHARING, "shared by pods"),
        (GKE_PARTITION, "a slice"),
    ):
        value = labels.get(key, "none")
        if value not in ("", "none"):
            raise PlanInputError(
                key,
                value,
                f"the accelerators of this node are {what} ({value})",
                "use nodes whose pods get whole accelerators",
            )


def refuse_name(product: str, key: str) -> None:
    """Raises PlanInputError for what shares an accelerator, or is a slice of one."""
    upper = product.upper()
    if upper.endswith("-SHARED"):
        raise PlanInputError(
            key,
            product,
            f"{product}: pods take turns on it, so a step waits for strangers and memory is not its own",
            "switch time-slicing or MPS off in the device plugin's configuration",
        )
    if "-MIG-" in upper:
        raise PlanInputError(
            key,
            product,
            f"{product}: slices of an accelerator have no links to each other",
            "set nvidia.com/mig.config to all-disabled on these nodes",
        )


def one_product(nodes: Iterable[Mapping[str, str]], resource: str = NVIDIA) -> Gpu | None:
    """The accelerator that all of these nodes have. Raises PlanInputError where products differ: the slowest
    would set the pace, and plans are for one shape.
    """
    found: dict[str, Gpu] = {}
    for labels in nodes:
        gpu = gpu_of(labels)
        if gpu is not None and gpu.resource == resource:
            found[gpu.name] = gpu
    if len(found) > 1:
        key = _LABELS_OF[resource][0]
        names = sorted(found)
        raise PlanInputError(
            key,
            ", ".join(names),
            f"the nodes have different accelerators: {', '.join(names)}",
            f"select one with a node selector, for example {key}: {names[-1]}",
        )
    if resource not in resources():
        raise PlanInputError(
            "spec.resources.perNode",
            resource,
            f"{resource} is not an accelerator that the planner knows",
            f"use one of: {', '.join(resources())}",
        )
    return next(iter(found.values()), None)
