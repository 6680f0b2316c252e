"""What can go wrong with checkpoints, as types: the caller decides by the type, a person by the message."""

from __future__ import annotations

from pathlib import Path

from trainer import errors
from trainer.errors import ConfigError, TrainerError
from trainingrun.protocol.exit_codes import ExitCode


class CheckpointDamaged(errors.CheckpointDamaged):
    """Bytes that are missing or are not those that were written. `item` is "" when the whole file is
    meant.
    """

    def __init__(self, checkpoint: str, file: Path | str, item: str, problem: str) -> None:
        where = f"{file}: {item}: " if item else f"{file}: "
        super().__init__(checkpoint, where + problem)
        self.file = str(file)
        self.item = item


class NotRead(TrainerError):
    """The location did not answer while a checkpoint was read. Nothing is damaged: it is tried again."""

    exit_code = ExitCode.NOT_FETCHED

    def __init__(self, checkpoint: str, where: str, problem: str) -> None:
        super().__init__(f"checkpoint {checkpoint} could not be read from {where}: {problem}")
        self.checkpoint = checkpoint


class CheckpointMismatch(ConfigError):
    """A whole checkpoint of another model: shapes or types differ, and no other checkpoint would fit
    better.
    """

    def __init__(self, checkpoint: str, item: str, found: str, wanted: str) -> None:
        super().__init__(
            "spec.checkpoint.location.uri",
            checkpoint,
            f"{item} is {found} there, but this run wants {wanted}",
            "use the model and precision that the checkpoint was made with, or another location",
        )
        self.item = item


class SaveFailed(TrainerError):
    """A durable checkpoint was not made; the ones before are untouched. `errno` of the cause, or 0."""

    def __init__(self, checkpoint: str, problem: str, errno: int = 0) -> None:
        super().__init__(f"checkpoint {checkpoint} was not saved: {problem}")
        self.checkpoint = checkpoint
        self.problem = problem
        self.errno = errno

    def __reduce__(self) -> tuple[type[SaveFailed], tuple[str, str, int]]:
        return (SaveFailed, (self.checkpoint, self.problem, self.errno))


class Fenced(TrainerError):
    """This writer belongs to an epoch that was given up; it must stop."""

    def __init__(self, checkpoint: str, problem: str) -> None:
        super().__init__(
            f"checkpoint {checkpoint} was not committed: {problem}. A newer epoch has taken over"
        )
        self.checkpoint = checkpoint
        self.problem = problem

    def __reduce__(self) -> tuple[type[Fenced], tuple[str, str]]:
        return (Fenced, (self.checkpoint, self.problem))


class NotExportable(TrainerError):
    """The checkpoint lacks what makes a model of its weights."""

    def __init__(self, checkpoint: str, problem: str) -> None:
        super().__init__(f"checkpoint {checkpoint} cannot be exported: {problem}")
        self.checkpoint = checkpoint


class SnapshotFailed(TrainerError):
    """The memory-backed folder cannot take the snapshots of this rank."""


class LocationTaken(ConfigError):
    """The checkpoint location belongs to another run, perhaps one of the same name that was deleted."""

    reason = "LocationInUse"

    def __init__(self, location: str, owner_name: str, owner_uid: str, run_name: str) -> None:
        owner = f"run {owner_name}"
        if owner_name == run_name:
            owner = "an earlier run of this name, which was deleted"
        super().__init__(
            "spec.checkpoint.location.uri",
            location,
            f"it holds the checkpoints of {owner} ({owner_uid}), and no run goes on from those of another",
            f"use another location for {run_name}; or empty this folder, if nobody needs what is in it",
        )
        self.owner = owner_uid
