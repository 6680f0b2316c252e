"""What a refusal means when something is read: it cannot be known now. The one place that says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainingrun.ports import Refused, Unavailable


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns Refused into Unavailable: reading is always allowed to a well-installed operator, or soon again."""
    try:
        yield
    except Refused as refused:
        raise Unavailable(f"cannot read {what}: {refused.reason}: {refused.message}") from refused
