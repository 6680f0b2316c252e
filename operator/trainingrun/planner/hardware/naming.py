"""From what a person types to a machine: `h100x8`, `a100-80gb`, `p5.48xlarge`, or a label's full name.

A short form is a few words of the full name, with how many a node has behind an x. It is never guessed which
of several machines is meant: a name that fits several lists them, and one that fits none gets the nearest.
Pure; called by the CLI.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from trainingrun.planner.cost.types import Machine
from trainingrun.planner.errors import PlanInputError
from trainingrun.planner.hardware.gpus import GPUS, Gpu, find
from trainingrun.planner.hardware.instances import INSTANCES, instance
from trainingrun.planner.hardware.labels import refuse_name
from trainingrun.planner.hardware.machine import instance_machine, machine

MOST_PER_NODE = 72  # the largest domain of fast links that is sold
_NEAREST = 3
_COUNT = re.compile(r"^(?P<name>.+?)\s*[x*:]\s*(?P<count>[0-9]+)$", re.IGNORECASE)
_WORDS = re.compile(r"[a-z]+[0-9]+[a-z]*|[0-9]+[a-z]*|[a-z]+")
_VENDORS = frozenset({"nvidia", "amd", "tesla", "instinct", "geforce", "gpu", "gb"})
# What people mean by a chip alone, where the table has several: the one on boards with fast links, largest
# memory first. Their other forms are asked for by name (a100-40gb, h100-pcie).
_USUAL = {
    "a100": "NVIDIA-A100-SXM4-80GB",
    "a800": "NVIDIA-A800-SXM4-80GB",
    "h100": "NVIDIA-H100-80GB-HBM3",
    "h800": "NVIDIA-H800",
    "v100": "Tesla-V100-SXM2-32GB",
    "mi300x": "AMD_Instinct_MI300X_OAM",
    "mi300": "AMD_Instinct_MI300X_OAM",
    "rtx4090": "NVIDIA-GeForce-RTX-4090",
}


def named_machine(text: str, *, path: str = "--hardware", per_node: int | None = None) -> Machine:
    """`per_node`: accelerators of a node where the name does not say; None: as many as usual. Raises
    PlanInputError for a name that fits nothing or several, and for slices of accelerators.
    """
    name, count = _split(text.strip(), path)
    refuse_name(name, path)
    if instance(name) is not None:
        known = instance_machine(name)
        if count is not None and count != known.accelerators:
            raise PlanInputError(
                path,
                text,
                f"a node of {name} has {known.accelerators} accelerators, not {count}",
                f"use {name}, or name the accelerator: {known.name}x{count}",
            )
        return known
    gpu = _gpu(name, text, path)
    return machine(gpu.name, count or per_node)


def resource_of(found: Machine) -> str:
    """What pods ask for to get these accelerators; the usual one where the table does not have them."""
    gpu = find(found.name)
    return gpu.resource if gpu is not None else "nvidia.com/gpu"


def short_name(gpu: Gpu) -> str:
    """The shortest form that means it: `h100`, `a100-40gb`, or its full name in lower case."""
    usual = next((short for short, name in _USUAL.items() if find(name) is gpu), "")
    if usual:
        return usual
    words = _words(gpu.name)
    for size in range(1, len(words) + 1):
        if _fitting(words[:size]) == [gpu]:
            return "-".join(words[:size])
    return gpu.name.lower()


def _split(text: str, path: str) -> tuple[str, int | None]:
    whole = find(_USUAL.get(text.lower(), text)) or instance(text)
    found = None if whole else _COUNT.match(text)
    if found is None:
        if not text:
            raise PlanInputError(
                path, text, "no hardware is named", "use a name such as h100x8 or p5.48xlarge"
            )
        return text, None
    count = int(found["count"])
    if not 1 <= count <= MOST_PER_NODE:
        raise PlanInputError(
            path,
            text,
            f"{count} accelerators in one node: "
            + ("no node has so many" if count else "a node has at least 1"),
            f"use 1 to {MOST_PER_NODE} accelerators a node, and --nodes for the number of nodes",
        )
    return found["name"], count


def _gpu(name: str, text: str, path: str) -> Gpu:
    exact = find(_USUAL.get(name.lower(), name))
    if exact is not None:
        return exact
    fitting = _fitting(_words(name))
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise PlanInputError(
            path,
            text,
            f"{name} may be one of {len(fitting)}: {', '.join(gpu.name for gpu in fitting)}",
            f"say which: {', '.join(short_name(gpu) for gpu in fitting)}",
        )
    raise PlanInputError(
        path,
        text,
        f"{name} is not hardware that the planner knows; nearest: {', '.join(nearest(name))}",
        "use one of them, or a file that declares the machine: --hardware machine.yaml",
    )


def _fitting(words: list[str]) -> list[Gpu]:
    """Accelerators of which one name has all of these words."""
    if not words:
        return []
    return [
        gpu for gpu in GPUS if any(set(words) <= set(_words(one)) for one in (gpu.name, *gpu.other_names))
    ]


def _words(name: str) -> list[str]:
    return [word for word in _WORDS.findall(name.lower()) if word not in _VENDORS]


def nearest(name: str) -> tuple[str, ...]:
    """The names that look most like it: short forms and instance types."""
    wanted = "-".join(_words(name)) or name.lower()
    known = {short_name(gpu): short_name(gpu) for gpu in GPUS}
    known |= {one.name.lower(): one.name for one in INSTANCES}
    scores = sorted(known, key=lambda one: (-difflib.SequenceMatcher(None, wanted, one).ratio(), one))
    return tuple(known[one] for one in scores[:_NEAREST])


def nearest_of(name: str, known: Sequence[str]) -> tuple[str, ...]:
    """Those of the full names `known` that are most likely meant: with most of its words, or that look most like it."""
    words = _words(name)
    wanted = "-".join(words) or name.lower()

    def likeness(one: str) -> tuple[int, float]:
        own = _words(one)
        ratio = difflib.SequenceMatcher(None, wanted, "-".join(own)).ratio()
        return len(set(words) & set(own)), ratio

    return tuple(sorted(known, key=likeness, reverse=True)[:_NEAREST])
