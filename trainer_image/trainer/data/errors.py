"""What can be wrong with a run's data. Standard library only."""

from __future__ import annotations

from trainer.errors import ConfigError, TrainerError


class DataError(ConfigError):
    """Data that cannot be used as the spec asks: the run can never work like this.

    `path` is the field (`spec.data.sources[0].uri`), `value` what stands there, `fix` what to do about it.
    """

    def __init__(self, path: str, value: object, problem: str, fix: str) -> None:
        super().__init__(path, value, problem, fix)
        self.path = path
        self.value = value
        self.problem = problem
        self.fix = fix


class StoreDamaged(TrainerError):
    """A token store whose bytes are not those that were written."""

    def __init__(self, file: object, offset: int, problem: str) -> None:
        super().__init__(
            f"{file}: byte {offset}: {problem}. Fix: put the file back, or write the store again; "
            "one in the run's cache is made again once its folder is removed"
        )
        self.file = file
        self.offset = offset
        self.problem = problem


class SourceAway(TrainerError):
    """A remote source that does not answer now. Starting again may help, so it is no ConfigError."""

    def __init__(self, uri: str, problem: str) -> None:
        super().__init__(
            f"{uri}: {problem}. Fix: nothing if it passes; else look at the server and the network"
        )
        self.uri = uri
