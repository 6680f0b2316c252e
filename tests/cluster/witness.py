"""Sees every pod that a run ever had, and what must never be so: two live pods for a seat, a pod of nobody, a storm.

Pure: it is given the pods of one LIST after the other, which each show one moment, and when they were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainingrun.api.constants import Label

STORM = 8  # pods of one seat in a minute: a seat whose pods all fail at once is given seven
_MINUTE = 60.0


@dataclass(frozen=True)
class SeenPod:
    """A pod as it was seen last. Times are seconds since 1970, as the API server wrote them."""

    name: str
    uid: str
    slot: int
    incarnation: int
    owner: str  # uid of the run that controls it; "" for none
    node: str
    phase: str
    created_at: float
    delete_asked_at: float  # 0.0: nobody asked

    @property
    def is_live(self) -> bool:
        return not self.delete_asked_at and self.phase not in ("Succeeded", "Failed")


class Witness:
    def __init__(self) -> None:
        self.pods: dict[str, SeenPod] = {}  # by uid
        self.present: frozenset[str] = frozenset()  # uids of the newest look
        self.run_uid = ""
        self._objections: dict[str, None] = {}

    def saw(self, items: Sequence[Mapping[str, Any]]) -> None:
        """The worker pods of a namespace, as one LIST shows them."""
        now = [read(item) for item in items]
        self.pods |= {pod.uid: pod for pod in now}
        self.present = frozenset(pod.uid for pod in now)
        live = Counter(pod.slot for pod in now if pod.is_live)
        for slot in sorted(slot for slot, count in live.items() if count > 1):
            names = sorted(pod.name for pod in now if pod.is_live and pod.slot == slot)
            self._objections[f"seat {slot} has the live pods {', '.join(names)} at once"] = None

    def names(self) -> list[str]:
        """Of all pods there ever were."""
        return sorted(pod.name for pod in self.pods.values())

    def objections(self) -> list[str]:
        orphans = [
            f"pod {pod.name} belongs to {pod.owner or 'nobody'}, not to the run"
            for pod in self.pods.values()
            if self.run_uid and pod.owner != self.run_uid
        ]
        return [*self._objections, *orphans, *storms(self.pods.values())]


def storms(pods: Iterable[SeenPod]) -> list[str]:
    """Seats that got too many pods within a minute."""
    by_slot: dict[int, list[float]] = {}
    for pod in pods:
        by_slot.setdefault(pod.slot, []).append(pod.created_at)
    found = []
    for slot, times in sorted(by_slot.items()):
        most = max(sum(first <= time < first + _MINUTE for time in times) for first in times)
        if most > STORM:
            found.append(f"seat {slot} got {most} pods within a minute")
    return found


def read(item: Mapping[str, Any]) -> SeenPod:
    about = item["metadata"]
    labels = about.get("labels") or {}
    owners = [owner["uid"] for owner in about.get("ownerReferences") or [] if owner.get("controller")]
    deletion = seconds(about.get("deletionTimestamp"))
    return SeenPod(
        name=about["name"],
        uid=about["uid"],
        slot=int(labels.get(Label.SLOT.value, -1)),
        incarnation=int(labels.get(Label.INCARNATION.value, -1)),
        owner=owners[0] if owners else "",
        node=item["spec"].get("nodeName") or "",
        phase=(item.get("status") or {}).get("phase", ""),
        created_at=seconds(about.get("creationTimestamp")),
        # The API server adds the grace period that the pod was given.
        delete_asked_at=deletion - (about.get("deletionGracePeriodSeconds") or 0) if deletion else 0.0,
    )


def seconds(text: str | None) -> float:
    """A time of the API as seconds since 1970; 0.0 for none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0
