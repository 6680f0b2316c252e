"""The trainer's typed errors, each with the exit code that tells the agent what to do next.

A rank that raises one of these ends with its `exit_code`; any other exception ends it with APPLICATION.
Standard library only. Messages are written for the person who has to act: field, value, fix.
"""

from __future__ import annotations

from trainingrun.protocol.exit_codes import ExitCode


class TrainerError(Exception):
    exit_code = ExitCode.APPLICATION


class ConfigError(TrainerError):
    """Training can never work like this; starting again does not help. `reason`: in the agent's last words."""

    exit_code = ExitCode.BAD_CONFIGURATION
    reason = "BadConfiguration"

    def __init__(self, field: str, value: object, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {value!r}: {problem}. Fix: {fix}")
        self.field = field


class TrainingDiverged(TrainerError):
    """The loss or the gradient is no longer a finite number."""


class CheckpointDamaged(TrainerError):
    """A restore point failed its checksums. `checkpoint` is its name, for the report to membership."""

    exit_code = ExitCode.CHECKPOINT_DAMAGED

    def __init__(self, checkpoint: str, problem: str) -> None:
        super().__init__(f"checkpoint {checkpoint} is damaged: {problem}")
        self.checkpoint = checkpoint


class NoCheckpoint(TrainerError):
    """Checkpoints were written, but none can be used: never start again from step 0 silently."""

    exit_code = ExitCode.NO_CHECKPOINT
