"""Why there is no plan: bad input (exit code 2) or nothing that fits (exit code 3).

Raised by the planner only. The message carries the whole equation, what is there, and the nearest that fits;
all of it is computed, so that a user can copy the fix.
"""

from __future__ import annotations

from typing import Any

from trainingrun.api.errors import CliExit, UserError
from trainingrun.planner.types import MemoryBill


class PlanError(UserError):
    """`path` is the field as the user wrote it. `bill` is of the best candidate, when one was weighed."""

    def __init__(
        self,
        path: str,
        value: Any,
        message: str,
        fix: str,
        *,
        bill: MemoryBill | None = None,
        available_bytes: int = 0,
    ) -> None:
        super().__init__(path, value, message, fix)
        self.path = path
        self.value = value
        self.message = message
        self.fix = fix
        self.bill = bill
        self.available_bytes = available_bytes

    def __str__(self) -> str:
        hint = f"\n  hint: {self.fix}" if self.fix else ""
        return f"{self.path}: {self.message}{hint}"


class PlanInputError(PlanError):
    """The question makes no sense whatever the machines are."""

    exit_code = CliExit.BAD_INPUT


class NothingFits(PlanError):
    """The question is sound, but these machines cannot do it."""

    exit_code = CliExit.NOTHING_FITS
