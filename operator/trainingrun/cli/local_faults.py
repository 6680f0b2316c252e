"""Faults that a user asks for: `--fault node-kill@50%,back=15s`. Parsed with clear errors; each done once.

`parse_fault` is pure. `FaultPlan.step` is called by the session with the newest progress, and does what is
due to the local cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainingrun.api.errors import UserError
from trainingrun.cluster.local.cluster import CONTROLLER, MEMBERSHIP, LocalCluster

KINDS = {
    "node-kill": "SIGKILL to a whole node: supervisor, agent and all ranks",
    "agent-kill": "SIGKILL to an agent",
    "rank-kill": "SIGKILL to one training process",
    "membership-kill": "SIGKILL to the membership service",
    "membership-stop": "SIGSTOP to the membership service",
    "controller-kill": "SIGKILL to the controller",
}
_ON_SEATS = ("node-kill", "agent-kill", "rank-kill")
_COMES_BACK = ("node-kill", "membership-kill", "membership-stop", "controller-kill")
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m)$")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class InvalidFault(UserError):
    """A --fault that does not mean anything."""


@dataclass(frozen=True)
class Fault:
    text: str
    kind: str
    step: int | None  # when this step is done …
    percent: float | None  # … or this share of all steps
    back_seconds: float | None  # None: never
    slot: int | None  # None: the highest seat that trains
    local_rank: int

    def due(self, step: int, total_steps: int) -> bool:
        threshold = self.step if self.percent is None else total_steps * self.percent / 100
        return threshold is not None and total_steps > 0 and step >= threshold


def parse_fault(text: str) -> Fault:
    """Raises InvalidFault with the value and what would be right."""
    head, *options = text.split(",")
    kind, at, when = head.partition("@")
    if kind not in KINDS:
        raise _invalid(text, f"{kind!r} is not a fault", f"one of {', '.join(KINDS)}")
    if not at:
        raise _invalid(text, "it does not say when", f"{kind}@50% or {kind}@step=120")
    step, percent = _when(text, kind, when)
    back: float | None = None
    slot: int | None = None
    local_rank = 0
    seen: set[str] = set()
    for option in options:
        key, _, value = option.partition("=")
        if key in seen:
            raise _invalid(text, f"{key} is given twice", f"keep one {key}=")
        seen.add(key)
        if key == "back" and kind in _COMES_BACK:
            back = _seconds(text, value)
        elif key == "slot" and kind in _ON_SEATS:
            slot = _number(text, key, value)
        elif key == "rank" and kind == "rank-kill":
            local_rank = _number(text, key, value)
        elif key == "back":
            raise _invalid(text, f"{kind} takes no back=", "its node starts it again by itself; remove back=")
        else:
            raise _invalid(text, f"{kind} takes no {key or 'empty option'}", _takes(kind))
    return Fault(text, kind, step, percent, back, slot, local_rank)


def _when(text: str, kind: str, when: str) -> tuple[int | None, float | None]:
    if when.endswith("%"):
        share = when.removesuffix("%")
        if not re.fullmatch(r"\d+(\.\d+)?", share) or not 0 < float(share) < 100:
            raise _invalid(
                text, f"{when!r} is not a share of the steps", f"above 0% and below 100%: {kind}@50%"
            )
        return None, float(share)
    if when.startswith("step="):
        step = _number(text, "step", when.removeprefix("step="))
        if step < 1:
            raise _invalid(text, "step=0 is before the first step", f"{kind}@step=1")
        return step, None
    raise _invalid(text, f"{when!r} is not a moment", f"{kind}@50% or {kind}@step=120")


def _number(text: str, key: str, value: str) -> int:
    if not value.isdecimal():
        raise _invalid(text, f"{key}={value!r} is not a whole number", f"{key}=1")
    return int(value)


def _seconds(text: str, value: str) -> float:
    match = _DURATION.match(value)
    if match is None:
        raise _invalid(text, f"back={value!r} is not a duration", "a number and ms, s or m: back=15s")
    return float(match[1]) * _UNITS[match[2]]


def _takes(kind: str) -> str:
    options = ["back=15s"] if kind in _COMES_BACK else []
    options += ["slot=0"] if kind in _ON_SEATS else []
    options += ["rank=0"] if kind == "rank-kill" else []
    return f"{kind} takes {', '.join(options)}"


def _invalid(text: str, problem: str, fix: str) -> InvalidFault:
    return InvalidFault(f"--fault {text}: {problem}\n  hint: {fix}")


class FaultPlan:
    """Does each fault once when its step is reached, and brings back what is to come back."""

    def __init__(
        self, faults: Sequence[Fault], cluster: LocalCluster, run: str, tell: Callable[[str], None]
    ) -> None:
        self._waiting = list(faults)
        self._coming: list[tuple[float, str, Callable[[], None]]] = []
        self._cluster = cluster
        self._run = run
        self._tell = tell

    def step(self, step: int, total_steps: int, seats: Sequence[int], now: float) -> None:
        """`seats`: slots that train. `now`: monotonic seconds."""
        for due in [item for item in self._coming if item[0] <= now]:
            self._coming.remove(due)
            self._tell(due[1])
            due[2]()
        for fault in [fault for fault in self._waiting if fault.due(step, total_steps)]:
            self._waiting.remove(fault)
            self._do(fault, step, seats, now)

    def _do(self, fault: Fault, step: int, seats: Sequence[int], now: float) -> None:
        cluster = self._cluster
        slot = fault.slot if fault.slot is not None else max(seats, default=0)
        try:
            if fault.kind == "node-kill":
                node = cluster.node_of(self._run, slot)
                if node is None:
                    raise LookupError(f"no node holds slot {slot}")
                cluster.kill_node(node)
                self._said(fault, step, f"{node} is killed: its supervisor, agent and ranks (SIGKILL)")
                self._later(fault, now, f"{node} comes back", lambda: cluster.start_node(node))
            elif fault.kind == "agent-kill":
                cluster.kill_agent(self._run, slot)
                self._said(fault, step, f"the agent of slot {slot} is killed (SIGKILL)")
            elif fault.kind == "rank-kill":
                cluster.kill_rank(self._run, slot, fault.local_rank)
                self._said(fault, step, f"rank {fault.local_rank} of slot {slot} is killed (SIGKILL)")
            elif fault.kind == "membership-stop":
                cluster.pause(MEMBERSHIP)
                self._said(fault, step, "membership is stopped (SIGSTOP)")
                self._later(fault, now, "membership goes on (SIGCONT)", lambda: cluster.resume(MEMBERSHIP))
            else:
                self._kill_program(fault, step, now)
        except LookupError as error:
            self._tell(f"{fault.text} was not possible at step {step}: {error}")

    def _kill_program(self, fault: Fault, step: int, now: float) -> None:
        cluster = self._cluster
        program = MEMBERSHIP if fault.kind == "membership-kill" else CONTROLLER
        start = cluster.start_membership if program == MEMBERSHIP else cluster.start_controller
        if fault.back_seconds is None:
            cluster.crash(program)
            self._said(fault, step, f"{program} is killed (SIGKILL); it is started again at once")
            return
        cluster.kill(program)
        self._said(fault, step, f"{program} is killed (SIGKILL)")
        self._later(fault, now, f"{program} comes back", lambda: start(supervised=True))

    def _said(self, fault: Fault, step: int, what: str) -> None:
        back = "" if fault.back_seconds is None else f"; back in {fault.back_seconds:g} s"
        self._tell(f"step {step}: {what}{back}")

    def _later(self, fault: Fault, now: float, text: str, action: Callable[[], None]) -> None:
        if fault.back_seconds is not None:
            self._coming.append((now + fault.back_seconds, text, action))
