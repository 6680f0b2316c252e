"""When a run is over for good: finished well, or ended by something that no restart can change.

Both are read from pods' last words, so they need no membership. What a person can mend while the run waits
(membership is blocked) does not end it. Pure; called by `decide`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainingrun.api.constants import Cause, ConditionType, Reason
from trainingrun.api.training import Training
from trainingrun.control.failures import Judgement
from trainingrun.control.folding import Failure
from trainingrun.control.observed import Observed
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.messages import Termination

_HOPELESS = {
    ExitCode.BAD_CONFIGURATION: Reason.BAD_CONFIGURATION,
    ExitCode.NO_CHECKPOINT: Reason.NO_USABLE_CHECKPOINT,
}


@dataclass(frozen=True)
class Facts:
    """What completion depends on, taken from the frozen spec."""

    total_steps: int
    exports: bool


def facts_of(spec: Mapping[str, Any]) -> Facts:
    training = Training.model_validate(dict(spec["training"]))
    return Facts(total_steps=training.total_steps, exports=bool(spec.get("output")))


def is_terminal(status: Mapping[str, Any]) -> bool:
    """Does status say that the run is over? It stays over whatever happens to its pods."""
    over = (ConditionType.COMPLETE, ConditionType.FAILED)
    return any(item["type"] in over and item["status"] == "True" for item in status.get("conditions") or [])


def completed_at(status: Mapping[str, Any]) -> float:
    """When the run was complete, in seconds since 1970; 0 for one that is not."""
    for item in status.get("conditions") or []:
        if item["type"] == ConditionType.COMPLETE and item["status"] == "True":
            return datetime.fromisoformat(item["lastTransitionTime"]).timestamp()
    return 0.0


def final_words(observed: Observed, spec: Mapping[str, Any]) -> Termination | None:
    """The last words of the pod that finished the run: every step done, checkpoint and model written."""
    facts = facts_of(spec)
    for _, end in observed.terminations:
        done = end.reason == "Done" and end.exit_code == ExitCode.DONE and end.step >= facts.total_steps
        if done and (end.export or not facts.exports) and (end.manifest or facts.exports):
            return end
    return None


def hopeless(observed: Observed) -> Failure | None:
    """Something that would be the same after every restart, and that only a person can change."""
    for pod, end in observed.terminations:
        if end.exit_code in _HOPELESS:
            known = _HOPELESS[ExitCode(end.exit_code)]
            reason = Reason.LOCATION_IN_USE if end.reason == Reason.LOCATION_IN_USE else known
            first = Judgement(Cause.APPLICATION, pod.slot, pod.node, end.exit_code, end.message)
            return Failure(reason, end.message, first)
    return None
