"""The last look at a run whose line is being stopped: its status as of now, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

from tests.operator.control_builders import (
    InstantPlans,
    resolve_plainly,
    training_view,
    turn,
)
from tests.operator.control_story import a_world
from tests.operator.fake_port import RUN, FakeWorld

from trainingrun.control.parting import write_last_news
from trainingrun.protocol.messages import RunView


class Seen(FakeWorld):
    """What membership says is what the test says."""

    told: RunView | None = None

    def membership(self, run_uid: str) -> RunView | None:
        return self.told


def a_training_world() -> FakeWorld:
    world, plans = a_world(), InstantPlans()
    for _ in range(4):
        turn(world, plans, 3)
    world.__class__ = Seen
    return world


def test_status_has_the_newest_step_however_short_ago_it_was_written():
    world, plans = a_training_world(), InstantPlans()
    for step in (120, 123):
        world.told = training_view(step=step)
        assert write_last_news(world, RUN, world.at, plans, resolve_plainly)
        assert world.status["progress"]["step"] == step
        world.at += 0.1


def test_nothing_is_created_or_deleted_while_the_line_goes_down():
    world, plans = a_training_world(), InstantPlans()
    world.told = training_view(step=120)
    world.lose_node("node-1")
    created, pods = len(world.created), list(world.pods(RUN))
    assert write_last_news(world, RUN, world.at, plans, resolve_plainly)
    assert len(world.created) == created
    assert list(world.pods(RUN)) == pods
    assert not [event for event in world.events if event.reason == "PodReplaced"]


def test_without_news_from_membership_status_stays_as_it_was():
    world, plans = a_training_world(), InstantPlans()
    before: Mapping[str, object] = dict(world.status)
    assert not write_last_news(world, RUN, world.at + 60, plans, resolve_plainly)
    assert world.status == before


def test_a_line_that_cannot_be_asked_any_more_is_no_error():
    world, plans = a_training_world(), InstantPlans()
    world.told = training_view(step=120)
    world.unavailable = True
    assert not write_last_news(world, RUN, world.at, plans, resolve_plainly)
    world.unavailable, world.run = False, None
    assert not write_last_news(world, RUN, world.at, plans, resolve_plainly)
