"""What `decide` wants done, as data. `reconcile` applies the list in its order and decides nothing.

Creations and deletions come first, then the status that claims them, then the events that tell people.
Every effect may be applied twice: names are pure functions of what they stand for, so a second creation is
a conflict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainingrun.ports import EventRecord, PodTemplate
from trainingrun.protocol.records import Revision


@dataclass(frozen=True)
class MakePlan:
    """Have the planner work on this resolved spec; the answer is part of a later observation."""

    spec: Mapping[str, Any]


@dataclass(frozen=True)
class CreateRevision:
    revision: Revision


@dataclass(frozen=True)
class DeletePod:
    name: str
    uid: str
    why: str


@dataclass(frozen=True)
class CreatePod:
    template: PodTemplate


@dataclass(frozen=True)
class WriteStatus:
    status: Mapping[str, Any]


@dataclass(frozen=True)
class EmitEvent:
    event: EventRecord


Effect = MakePlan | CreateRevision | DeletePod | CreatePod | WriteStatus | EmitEvent


@dataclass(frozen=True)
class Decision:
    """Effects in the order of their application, and when to look again even if nothing is heard until
    then.
    """

    effects: Sequence[Effect] = ()
    revisit_at: float | None = None  # seconds since 1970
