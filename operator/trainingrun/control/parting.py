"""The last look at a run whose whole line is about to be stopped: its status is brought up to date, nothing else.

The control loop writes the progress of a run in intervals, so what stands in status when its process ends may be
seconds old. Nothing is created or deleted here: who stops a line does so on purpose. Called by `trainingrun local run`
once the controller has ended, while membership still answers.
"""

from __future__ import annotations

from dataclasses import replace

from trainingrun.api.constants import EventReason
from trainingrun.control.decide import DEFAULT_POLICY, decide
from trainingrun.control.effects import EmitEvent, WriteStatus
from trainingrun.control.reconcile import Planning, Resolve, observe
from trainingrun.ports import Conflict, ControlPort, Refused, Unavailable

_OF_SEATS = (EventReason.POD_CREATED, EventReason.POD_REPLACED)  # which are not done here, so not told


def write_last_news(port: ControlPort, name: str, now: float, planning: Planning, resolve: Resolve) -> bool:
    """Whether status is as of now. It stays as it was when membership does not answer: nothing newer is known then."""
    try:
        run = port.get_run(name)
        if run is None:
            return False
        observed = observe(port, run, planning, resolve)
        if observed.view is None:
            return False
        policy = replace(DEFAULT_POLICY, progress_write_seconds=0.0)
        for effect in decide(observed, now, policy).effects:
            match effect:
                case WriteStatus(status):
                    port.write_status(run.key, status, run.resource_version)
                case EmitEvent(event) if event.reason not in _OF_SEATS:
                    port.emit(run.key, event)
    except (Conflict, Refused, Unavailable):
        return False
    return True
