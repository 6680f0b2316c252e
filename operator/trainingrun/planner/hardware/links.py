"""What sending costs: links inside and between nodes, from what people write about them.

A message of n bytes takes `latency x hops + (n + half size) / bandwidth`: at its half size a message gets
half of the bandwidth. A100 with 8 accelerators (measured all-reduce, github.com/VIA-Research/vTrain
trace/a100): 20 GB/s at 1 MiB, 126 at 16 MiB, 229 at 1 GiB; this curve gives 19, 131 and 233. Rings reach
0.78 of NVLink's line rate (A100 above; 365 of 450 GB/s on H200), and 0.85 of a network's when each
accelerator has a rail of its own.
"""

from __future__ import annotations

import re
from dataclasses import replace

from trainingrun.planner.cost.types import Link
from trainingrun.planner.hardware.gpus import Gpu

RING_SHARE = 0.78  # of the line rate of NVLink or xGMI
PCIE_SHARE = 0.6  # of PCIe, when all neighbours send
NETWORK_SHARE = 0.85  # of the network cards
_START_SECONDS = 36e-6  # of a collective over NVLink: half size / bandwidth
_NETWORK_START_SECONDS = 60e-6
_LOCAL_HOP_SECONDS = 1.6e-6
_NETWORK_HOP_SECONDS = 6e-6
_PCIE_HOP_SECONDS = 5e-6


def local_link(gpu: Gpu) -> Link:
    if not gpu.local_links:
        speed = PCIE_SHARE * gpu.local_link_bytes_per_second
        return Link(speed, _PCIE_HOP_SECONDS, speed * _START_SECONDS)
    speed = RING_SHARE * gpu.local_link_bytes_per_second
    return Link(speed, _LOCAL_HOP_SECONDS, speed * _START_SECONDS)


def network_link(bytes_per_second: float) -> Link:
    """`bytes_per_second`: line rate for each accelerator."""
    speed = NETWORK_SHARE * bytes_per_second
    return Link(speed, _NETWORK_HOP_SECONDS, speed * _NETWORK_START_SECONDS)


_CARDS = re.compile(r"(\d+)\s*x\s*(\d+)\s*Gb", re.IGNORECASE)
_EACH = re.compile(r"(\d+)\s*Gb\S*\s*(?:IB\s*)?per GPU", re.IGNORECASE)
_NODE = re.compile(r"(\d+)\s*Gb\S*\s*(?:[A-Za-z]+\s*)?(?:per node|/node)", re.IGNORECASE)
_ALONE = re.compile(r"OPA\s*(\d+)\s*Gb", re.IGNORECASE)


def network_of(text: str, per_node: int) -> float | None:
    """Line rate of one accelerator's share of the network in bytes per second, from words such as "NVLink3 +
    4x100Gb/s RoCE per node"; None when they do not say.
    """
    if found := _EACH.search(text):
        return float(found[1]) * 1e9 / 8
    if found := _CARDS.search(text):
        return float(found[1]) * float(found[2]) * 1e9 / 8 / per_node
    if found := _NODE.search(text):
        return float(found[1]) * 1e9 / 8 / per_node
    if found := _ALONE.search(text):
        return float(found[1]) * 1e9 / 8 / per_node
    return None


def faster(link: Link, factor: float) -> Link:
    """The same link at another speed."""
    return replace(link, bytes_per_second=link.bytes_per_second * factor)
