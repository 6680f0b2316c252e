"""Ports on this machine: which are free, and whether somebody answers. Called by the local cluster."""

from __future__ import annotations

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
_CANDIDATES = 200


def choose_port() -> int:
    """A free port below the range that the kernel gives to clients.

    A client that calls a closed port of that range can be given that very port, and then talks to itself.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first, end = (10240, low) if low > 12000 else (1024, low)
    candidates = random.sample(range(first, end), min(_CANDIDATES, end - first))
    port = next((port for port in candidates if can_listen(port)), None)
    if port is None:
        raise OSError(f"no free port found between {first} and {end} on {HOST}")
    return port


def can_listen(port: int) -> bool:
    with socket.socket() as probe:
        # Connections of an ended service that linger in TIME_WAIT do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0
