"""Exit codes of a rank (training process) and of an agent, and what each asks of its parent.

| code | name | meaning | the parent |
|---|---|---|---|
| 0 | DONE | the work is finished, or the rank paused at an agreed step | - |
| 1 | APPLICATION | the training code raised | new epoch, counted as Application |
| 64 | BAD_CONFIGURATION | can never work: message names field, value, fix | never restarted |
| 65 | CHECKPOINT_DAMAGED | the restore point failed its checksums; the report names it | new epoch without it |
| 66 | NO_CHECKPOINT | checkpoints were written but none can be used | never restarted: never silently from step 0 |
| 67 | NOT_FETCHED | a snapshot could not be had from its holders; nothing is damaged | new epoch, from it while held |
| 69 | MEMBERSHIP_LOST | the agent was told that the run or its seat is gone | not restarted |
| 75 | LEFT | the agent left on request | not restarted |
| 137 | (SIGKILL) | killed: out of memory, node, person | new epoch |
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    APPLICATION = 1
    BAD_CONFIGURATION = 64
    CHECKPOINT_DAMAGED = 65
    NO_CHECKPOINT = 66
    NOT_FETCHED = 67
    MEMBERSHIP_LOST = 69
    LEFT = 75


NEVER_RESTARTED = frozenset(
    {
        ExitCode.DONE,
        ExitCode.BAD_CONFIGURATION,
        ExitCode.NO_CHECKPOINT,
        ExitCode.MEMBERSHIP_LOST,
        ExitCode.LEFT,
    }
)
"""Agent exit codes after which a kubelet, or its stand-in, must not start the container again."""
