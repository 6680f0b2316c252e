"""Writes the agent's termination message. Completion and the final step are read from it, without membership.

The reader must see all of it or nothing, and a kubelet keeps only its first 4,096 bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from pathlib import Path

from trainingrun.protocol import wire
from trainingrun.protocol.messages import Termination

MAX_BYTES = 4096


def write(path: Path, termination: Termination) -> None:
    """Raises OSError when the file cannot be written at all."""
    data = encode(termination)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        # A kubelet mounts the file itself into a folder that may be read-only. One write is the next best.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        path.write_bytes(data)


def encode(termination: Termination) -> bytes:
    """JSON of at most MAX_BYTES; a message that is too long loses its middle."""
    data = _dump(termination)
    length = len(termination.message)
    while len(data) > MAX_BYTES and length > 0:
        length = length * 3 // 4
        half = length // 2
        text = termination.message
        short = f"{text[:half]} … {text[len(text) - half :]}" if half else ""
        data = _dump(replace(termination, message=short))
    return data


def read(path: Path) -> Termination | None:
    """None when there is none, or not a whole one."""
    try:
        return wire.from_json(Termination, json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None


def _dump(termination: Termination) -> bytes:
    return json.dumps(wire.to_json(termination), ensure_ascii=False).encode()
