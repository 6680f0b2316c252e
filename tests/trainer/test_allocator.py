"""Memory that a rank has freed stays its own. In processes of their own: the setting is for good."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from trainer.allocator import keep_memory
if sys.argv[1] == "kept" and not keep_memory():
    raise SystemExit("not arranged")
for _ in range(2):  # of the second round
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(megabytes << 20, dtype=torch.uint8) for megabytes in (40, 3, 8, 8, 3, 8, 8, 3, 40)]
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_a_step_does_not_pay_again_for_memory_that_the_one_before_has_freed() -> None:
    assert faults("kept") < 0.5 * faults("as glibc does")


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)
