"""A shortage of memory kills the process that was meant, whatever its death sets free. Needs root, and no cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.memory import kill_for_memory

from trainingrun.cluster.local import processes

_LIMIT = 64 << 20
# As ranks and the server that they are forked from: what one of them holds, the other holds too.
_FAMILY = """
import os, sys, time
from pathlib import Path

(Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
shared = bytearray(b"x") * (24 << 20)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory control group with a limit, as a container has one."""
    root = Path("/sys/fs/cgroup")
    one = (root / "cgroup.controllers").exists()  # version 2
    if one:
        (root / "cgroup.subtree_control").write_text("+memory")
    folder = (root if one else root / "memory") / f"trainingrun-test-memory-{os.getpid()}"
    folder.mkdir()
    (folder / ("memory.max" if one else "memory.limit_in_bytes")).write_text(str(_LIMIT))
    yield folder
    deadline = time.monotonic() + 10
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:  # what was in it is still ending
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("meant", ["parent", "child"])
def test_the_process_that_is_meant_dies_and_its_relative_lives_on(group: Path, meant: str) -> None:
    command = [sys.executable, "-c", _FAMILY, str(group)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = processes.find(int(parent.stdout.readline()))
        assert child is not None
        other = processes.find(parent.pid)
        assert other is not None
        victim, relative = (other, child) if meant == "parent" else (child, other)
        try:
            kill_for_memory(victim.pid)
            assert not processes.alive(victim)
            assert processes.alive(relative)
        finally:
            parent.kill()
            processes.send(child, 9)


def test_a_process_that_is_gone_is_said_to_be() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(LookupError, match=f"there is no process {ended.pid}"):
        kill_for_memory(ended.pid)
