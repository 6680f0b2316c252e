"""What collectives take, by link and size of the message.

A ring over g ranks sends (g - 1) / g of the message through each rank (an all-reduce twice that), in g - 1
hops (twice), and starts as slowly as the link's curve says: a message of the link's half size takes twice
its share of the bandwidth. A group that crosses nodes is as fast as its members of one node are together on
the network, and at most as the link inside: each has network cards of its own (rings are aligned with
rails). Pure arithmetic.
"""

from __future__ import annotations

from trainingrun.planner.cost.types import Link, Machine

_MOST_HOPS = 64.0  # beyond that, trees and channels of NCCL keep the latency from growing with each rank


def group_link(machine: Machine, stride: int, size: int) -> Link:
    """The link that paces a group of `size` ranks, each `stride` ranks from the next."""
    together = machine.domain or machine.accelerators
    if stride * size <= together:
        return machine.inside
    local = max(1, machine.accelerators // stride)
    between, inside = machine.between, machine.inside
    speed = between.bytes_per_second * min(local, size)
    if speed >= inside.bytes_per_second:
        return Link(inside.bytes_per_second, between.latency_seconds, between.half_size_bytes)
    return Link(speed, between.latency_seconds, between.half_size_bytes * min(local, size))


def gather(message: float, size: int, link: Link) -> float:
    """An all-gather or a reduce-scatter; `message` is the whole."""
    if size <= 1:
        return 0.0
    share = (size - 1) / size
    hops = size - 1 if size - 1 < _MOST_HOPS else _MOST_HOPS
    return (message * share + link.half_size_bytes) / link.bytes_per_second + hops * link.latency_seconds


def all_reduce(message: float, size: int, link: Link) -> float:
    if size <= 1:
        return 0.0
    share = 2.0 * (size - 1) / size
    hops = size - 1 if size - 1 < _MOST_HOPS else _MOST_HOPS
    return (message + link.half_size_bytes) * share / link.bytes_per_second + 2 * hops * link.latency_seconds


def exchange(message: float, size: int, machine: Machine, stride: int, far_cost: float = 1.0) -> float:
    """An all-to-all: `message` is what one rank sends to all, itself included. What stays in the node goes
    over the link inside while the rest is on the network, where many small messages take `far_cost` times
    what one takes.
    """
    if size <= 1:
        return 0.0
    together = max(1, (machine.domain or machine.accelerators) // stride)
    inside, between = machine.inside, machine.between
    near = min(size, together)
    start = inside.half_size_bytes / inside.bytes_per_second
    local = message * (near - 1) / size / inside.bytes_per_second
    far = 0.0
    if size > near:
        far = far_cost * message * (size - near) / size / between.bytes_per_second
        start += between.half_size_bytes / between.bytes_per_second
    return max(local, far) + start + min(size, _MOST_HOPS) * inside.latency_seconds


def transfer(message: float, machine: Machine, stride: int, size: int) -> float:
    """From one stage of a pipeline to the next."""
    together = machine.domain or machine.accelerators
    link = machine.inside if stride * size <= together else machine.between
    return (message + link.half_size_bytes) / link.bytes_per_second + link.latency_seconds
