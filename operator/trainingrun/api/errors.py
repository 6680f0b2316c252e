"""Errors that a user can do something about, and the exit code that the CLI ends with for each of them.

| code | name | meaning |
|---|---|---|
| 0 | OK | done |
| 1 | UNEXPECTED | a fault of ours; please report it |
| 2 | BAD_INPUT | the command line or the manifest is wrong; nothing was started |
| 3 | NOTHING_FITS | no plan fits the machines |
| 4 | RUN_FAILED | the run gave up (its status says why), or a checkpoint is damaged |
| 5 | MISSING | a file or a run that was named is not there |
| 6 | TIMEOUT | what was waited for has not come within the time allowed |
| 7 | UNREACHABLE | the cluster does not answer, or does not allow what was asked |

Every error says where, which value, and what to do: `str(error)` is what the user reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any


class CliExit(IntEnum):
    OK = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    NOTHING_FITS = 3
    RUN_FAILED = 4
    MISSING = 5
    TIMEOUT = 6
    UNREACHABLE = 7


@dataclass(frozen=True)
class FieldError:
    """One thing that is wrong with one field. `path` is as the user wrote it: `spec.data.sources[0].uri`."""

    path: str
    value: Any
    message: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        hint = f"\n  hint: {self.fix}" if self.fix else ""
        return f"{where}{self.message}{hint}"

    def within(self, prefix: str) -> FieldError:
        """The same error, seen from the block that holds this one."""
        joint = "" if not prefix or not self.path or self.path.startswith("[") else "."
        return replace(self, path=f"{prefix}{joint}{self.path}")


class UserError(Exception):
    """Base of errors that are answered with one clear message and an exit code, never with a traceback."""

    exit_code = CliExit.BAD_INPUT


class InvalidManifest(UserError):
    """Everything that is wrong with a manifest, at once. `source` names the file, when there is one."""

    exit_code = CliExit.BAD_INPUT

    def __init__(self, errors: tuple[FieldError, ...], source: str = "") -> None:
        super().__init__(errors, source)
        self.errors = errors
        self.source = source

    def __str__(self) -> str:
        count = len(self.errors)
        heading = [self.source] if self.source else []
        if count > 1:
            heading.append(f"{count} errors")
        lines = [": ".join(heading)] if heading else []
        return "\n".join([*lines, *(str(error) for error in self.errors)])


class UnreadableManifest(UserError):
    """The file is there but is not one YAML mapping. The message names file, line and fix."""

    exit_code = CliExit.BAD_INPUT


class Missing(UserError):
    """A file that the user named is not there."""

    exit_code = CliExit.MISSING
