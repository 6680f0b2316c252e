"""Network namespaces and links: one switch in the control plane's namespace, one cable to each node.

A partition pulls the cable on the switch's side. Nothing is routed to or from the host: tests enter a namespace.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.harness import layout
from tests.cluster.harness.layout import Node
from tools import cache

CLONE_NEWNET = 0x40000000


def path(namespace: str) -> Path:
    return layout.NAMESPACES / namespace


def exists(namespace: str) -> bool:
    return path(namespace).exists()


def _ip(namespace: str, *words: str) -> None:
    cache.run("ip", "-n", namespace, *words, timeout_seconds=20)


def _add(namespace: str) -> None:
    cache.run("ip", "netns", "add", namespace, timeout_seconds=20)
    _ip(namespace, "link", "set", "lo", "up")
    cache.run(
        *("nsenter", f"--net={path(namespace)}", "sysctl", "-qw", "net.ipv4.ip_forward=1"), timeout_seconds=20
    )


def add_switch() -> None:
    """The control plane's namespace with its bridge."""
    _add(layout.CONTROL_PLANE)
    _ip(layout.CONTROL_PLANE, "link", "add", layout.BRIDGE, "type", "bridge")
    _ip(layout.CONTROL_PLANE, "addr", "add", f"{layout.CONTROL_ADDRESS}/24", "dev", layout.BRIDGE)
    _ip(layout.CONTROL_PLANE, "link", "set", layout.BRIDGE, "up")


def add_node(node: Node) -> None:
    """The node's namespace, its cable to the switch, and the route to its pods."""
    _add(node.namespace)
    switch = layout.CONTROL_PLANE
    _ip(switch, "link", "add", node.link, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
    _ip(switch, "link", "set", node.link, "master", layout.BRIDGE, "up")
    _ip(node.namespace, "addr", "add", f"{node.address}/24", "dev", "eth0")
    _ip(node.namespace, "link", "set", "eth0", "up")
    _ip(node.namespace, "route", "add", "default", "via", layout.CONTROL_ADDRESS)
    _ip(switch, "route", "replace", node.pod_range, "via", node.address)


def is_plugged(node: Node) -> bool:
    return exists(node.namespace) and _has(node.link)


def remove(namespace: str) -> None:
    cache.run("ip", "netns", "del", namespace, timeout_seconds=20)


def remove_cable(node: Node) -> None:
    """Gone at once. With the namespace alone it would go a moment later, and a new one could not be made until then."""
    if _has(node.link):
        _ip(layout.CONTROL_PLANE, "link", "del", node.link)


def _has(link: str) -> bool:
    names = cache.run("ip", "-n", layout.CONTROL_PLANE, "-br", "link", "show", timeout_seconds=20)
    return any(line.partition("@")[0].split()[0] == link for line in names.splitlines() if line)


def set_cable(node: Node, connected: bool) -> None:
    _ip(layout.CONTROL_PLANE, "link", "set", node.link, "up" if connected else "down")


def cable_is_up(node: Node) -> bool:
    """False also for a node that has none: somebody was ended while switching it on."""
    if not _has(node.link):
        return False
    text = cache.run("ip", "-n", layout.CONTROL_PLANE, "-o", "link", "show", node.link, timeout_seconds=20)
    return ",UP" in text.partition(">")[0]


@contextmanager
def inside(namespace: Path) -> Iterator[None]:
    """The calling thread is in that network namespace within the block: sockets made there stay there.

    Only the thread moves. Never use it around code that waits for other threads to open sockets.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(target)
        finally:
            os.close(target)
        try:
            yield
        finally:
            enter(home)
    finally:
        os.close(home)


def listener(address: str, port: int, namespace: Path | None = None) -> socket.socket:
    """A listening TCP socket, in another network namespace if given. Raises OSError when the port is taken."""

    def make() -> socket.socket:
        return socket.create_server((address, port), backlog=128)

    if namespace is None:
        return make()
    with inside(namespace):
        return make()
