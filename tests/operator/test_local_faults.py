"""`--fault`: what can be asked for, what is refused and how, and that each fault happens once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainingrun.cli.local_faults import KINDS, FaultPlan, InvalidFault, parse_fault


class FakeCluster:
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def node_of(self, run: str, slot: int) -> str | None:
        return f"node-{slot}" if slot < 4 else None

    def __getattr__(self, name: str) -> Any:
        def act(*arguments: Any, **_: Any) -> None:
            self.done.append(" ".join([name, *map(str, arguments)]))

        return act


class Plan:
    def __init__(self, *faults: str) -> None:
        self.cluster = FakeCluster()
        self.told: list[str] = []
        parsed = [parse_fault(text) for text in faults]
        self.plan = FaultPlan(parsed, self.cluster, "demo", self.told.append)  # type: ignore[arg-type]

    def at(self, step: int, total: int = 100, seats: tuple[int, ...] = (0, 1), now: float = 0.0) -> list[str]:
        """What is done when this step is reached."""
        before = len(self.cluster.done)
        self.plan.step(step, total, seats, now)
        return self.cluster.done[before:]


def test_a_node_kill_in_the_middle_that_comes_back() -> None:
    fault = parse_fault("node-kill@50%,back=15s")
    assert (fault.kind, fault.percent, fault.step, fault.back_seconds) == ("node-kill", 50.0, None, 15.0)


def test_a_rank_kill_at_a_step_of_a_chosen_seat_and_rank() -> None:
    fault = parse_fault("rank-kill@step=120,slot=1,rank=1")
    assert (fault.kind, fault.step, fault.slot, fault.local_rank) == ("rank-kill", 120, 1, 1)


@pytest.mark.parametrize(("text", "seconds"), [("15s", 15), ("2m", 120), ("500ms", 0.5), ("1.5s", 1.5)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_fault(f"node-kill@50%,back={text}").back_seconds == seconds


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("", "'' is not a fault", "node-kill"),
        ("node-explode@50%", "'node-explode' is not a fault", "one of node-kill"),
        ("node-kill", "it does not say when", "node-kill@50%"),
        ("node-kill@", "'' is not a moment", "node-kill@step=120"),
        ("node-kill@noon", "'noon' is not a moment", "node-kill@50%"),
        ("node-kill@0%", "'0%' is not a share", "above 0%"),
        ("node-kill@100%", "'100%' is not a share", "below 100%"),
        ("node-kill@step=0", "step=0 is before the first step", "step=1"),
        ("node-kill@step=-5", "step='-5' is not a whole number", "step=1"),
        ("node-kill@50%,back=15", "back='15' is not a duration", "back=15s"),
        ("node-kill@50%,back=1s,back=2s", "back is given twice", "keep one"),
        ("rank-kill@50%,back=3s", "rank-kill takes no back=", "remove back="),
        ("node-kill@50%,rank=1", "node-kill takes no rank", "slot=0"),
        ("membership-kill@50%,slot=1", "membership-kill takes no slot", "back=15s"),
        ("node-kill@50%,", "takes no empty option", "node-kill takes"),
    ],
)
def test_a_fault_that_means_nothing_is_refused_with_its_value_and_a_fix(
    text: str, problem: str, hint: str
) -> None:
    with pytest.raises(InvalidFault) as caught:
        parse_fault(text)
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"--fault {text}: ")
    assert problem in first
    assert hint in second


@given(st.text(max_size=40))
def test_any_text_is_a_fault_or_refused(text: str) -> None:
    try:
        assert parse_fault(text).kind in KINDS
    except InvalidFault as error:
        assert "hint:" in str(error)


def test_a_fault_happens_once_when_its_share_of_the_steps_is_done() -> None:
    plan = Plan("node-kill@50%")
    assert plan.at(0, total=0) == []  # nothing is known yet
    assert plan.at(49) == []
    assert plan.at(50) == ["kill_node node-1"]
    assert plan.at(50) == []
    assert plan.at(30) == []  # steps that are trained again
    assert plan.at(60) == []


def test_a_node_comes_back_after_its_time_and_once() -> None:
    plan = Plan("node-kill@step=5,back=15s")
    assert plan.at(5, now=100.0) == ["kill_node node-1"]
    assert plan.at(9, now=114.9) == []
    assert plan.at(9, now=115.0) == ["start_node node-1"]
    assert plan.at(9, now=200.0) == []
    assert any("back in 15 s" in line for line in plan.told)
    assert any("node-1 comes back" in line for line in plan.told)


def test_without_a_seat_the_highest_that_trains_is_hit() -> None:
    assert Plan("agent-kill@step=1").at(1, seats=(0, 2)) == ["kill_agent demo 2"]
    assert Plan("agent-kill@step=1,slot=0").at(1, seats=(0, 2)) == ["kill_agent demo 0"]
    assert Plan("rank-kill@step=1,rank=1").at(1, seats=(0,)) == ["kill_rank demo 0 1"]


def test_membership_and_controller_come_back_by_themselves_unless_a_time_is_given() -> None:
    assert Plan("membership-kill@step=1").at(1) == ["crash membership"]
    assert Plan("controller-kill@step=1").at(1) == ["crash controller"]
    plan = Plan("membership-kill@step=1,back=30s")
    assert plan.at(1, now=0.0) == ["kill membership"]
    assert plan.at(1, now=30.0) == ["start_membership"]


def test_membership_is_stopped_and_continued() -> None:
    plan = Plan("membership-stop@step=1,back=30s")
    assert plan.at(1, now=0.0) == ["pause membership"]
    assert plan.at(1, now=31.0) == ["resume membership"]


def test_a_fault_that_is_not_possible_is_told_and_not_tried_again() -> None:
    plan = Plan("node-kill@step=1,slot=9")
    assert plan.at(1) == []
    assert "no node holds slot 9" in plan.told[0]
    assert plan.at(2) == []
