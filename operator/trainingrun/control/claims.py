"""Can the volume claims that a spec names be used by all of its nodes?

Looked at before the spec is frozen, because a pod whose claim is missing only waits, and one claim for one
node would let a single pod of many start. Pure; used by `decide`, `state` and `conditions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.api.claims import ClaimUse, claims_of
from trainingrun.api.constants import Reason
from trainingrun.control.observed import Observed
from trainingrun.ports import Claim

_MANY_WRITE = "ReadWriteMany"
_MANY_READ = "ReadOnlyMany"


@dataclass(frozen=True)
class ClaimProblem:
    reason: Reason  # of the first claim that has one
    message: str  # of all


def claim_problem(observed: Observed) -> ClaimProblem | None:
    """None as well once there is a revision: nobody looks at claims then."""
    if observed.spec is None or observed.revision is not None:
        return None
    nodes = int(observed.spec["scale"]["maxNodes"])
    found = [_look(use, observed.claims.get(use.name), nodes) for use in claims_of(observed.spec)]
    problems = [problem for problem in found if problem is not None]
    if not problems:
        return None
    return ClaimProblem(problems[0].reason, "; ".join(problem.message for problem in problems))


def claim_names(spec: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(use.name for use in claims_of(spec))


def _look(use: ClaimUse, claim: Claim | None, nodes: int) -> ClaimProblem | None:
    if claim is None:
        text = f"{use.field}: there is no PersistentVolumeClaim {use.name} in the run's namespace: create it"
        text += ", or, where the name is wrong, delete the run and apply the changed manifest"
        return ClaimProblem(Reason.CLAIM_MISSING, text)
    if claim.phase == "Lost":
        text = f"{use.field}: the volume of PersistentVolumeClaim {use.name} is lost: make the claim anew"
        return ClaimProblem(Reason.CLAIM_MISSING, text)
    modes = set(claim.access_modes)
    what = f"{use.field}: PersistentVolumeClaim {use.name} is {', '.join(claim.access_modes) or 'without access modes'}"
    if use.writes and modes == {_MANY_READ}:
        text = f"{what}, and the run writes to it: use a claim that is {_MANY_WRITE}"
        return ClaimProblem(Reason.CLAIM_READ_ONLY, text)
    shared = {_MANY_WRITE} if use.writes else {_MANY_WRITE, _MANY_READ}
    if nodes > 1 and not modes & shared:
        text = f"{what}, for one node at a time, and spec.scale.maxNodes is {nodes}: "
        text += f"use a claim that is {' or '.join(sorted(shared))}, or set spec.scale.maxNodes to 1"
        return ClaimProblem(Reason.CLAIM_NOT_SHARED, text)
    return None
