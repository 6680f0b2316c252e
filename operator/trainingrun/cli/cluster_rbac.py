"""What each verb asks of the cluster, as RBAC has it: shown by its help, and when the cluster refuses.

The list is the documentation and is held against what the verbs really ask for by a test.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainingrun.api.constants import GROUP, PLURAL


@dataclass(frozen=True)
class Need:
    verbs: tuple[str, ...]
    resource: str  # with the API group behind a dot, as kubectl takes it
    optional: bool = False  # without it the verb works and says what it cannot show

    def __str__(self) -> str:
        text = f"{'/'.join(self.verbs)} {self.resource}"
        return f"{text} (optional)" if self.optional else text


RUNS = f"{PLURAL}.{GROUP}"
RECORDS = "controllerrevisions.apps"

NEEDS: dict[str, tuple[Need, ...]] = {
    "list": (Need(("list",), RUNS),),
    "describe": (
        Need(("get",), RUNS),
        Need(("list",), "pods", optional=True),
        Need(("list",), "events", optional=True),
        Need(("list",), RECORDS, optional=True),
        Need(("list",), "nodes", optional=True),
    ),
    "export": (Need(("get",), RUNS), Need(("list",), RECORDS)),
    "events": (Need(("get",), RUNS), Need(("list",), "events")),
    "logs": (Need(("get",), RUNS), Need(("list",), "pods"), Need(("get",), "pods/log")),
    "scale": (
        Need(("get",), RUNS),
        Need(("patch",), f"{RUNS}/scale"),
        Need(("get",), RECORDS, optional=True),
    ),
    "wait": (Need(("get",), RUNS),),
}
SEARCH = Need(("list",), RUNS)
"""For the hint when a run is not there: which names and namespaces there are."""


def needs_text(verb: str) -> str:
    """`get trainingruns.trainingrun.dev, list pods (optional)`."""
    return ", ".join(str(need) for need in NEEDS[verb])
