"""When a watch counts as stalled: LISTs show an object newer than anything that was heard of it, for too long."""

from __future__ import annotations

from typing import Any

from trainingrun.cluster.kubernetes.freshness import GAP_SECONDS, KEEP_SECONDS, Freshness, Watched


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A freshness and the time. `lists` and `hears` take versions by name of object."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.freshness = Freshness(self.clock)

    def after(self, seconds: float) -> World:
        self.clock.now += seconds
        return self

    def lists(self, which: Watched = Watched.PODS, complete: bool = True, **versions: int) -> World:
        self.freshness.listed(which, [_object(*item) for item in versions.items()], complete)
        return self

    def hears(self, which: Watched = Watched.PODS, **versions: int) -> World:
        for item in versions.items():
            self.freshness.heard(which, _object(*item))
        return self

    def stalled(self, longer_than: float = 20.0) -> list[str]:
        return [stall.resource.value for stall in self.freshness.stalls(longer_than)]


def _object(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def test_a_watch_that_tells_everything_is_fresh() -> None:
    assert World().hears(a=5).lists(a=5).after(30).lists(a=5).stalled() == []


def test_a_watch_that_is_silent_about_a_change_is_stalled_after_a_while() -> None:
    world = World().hears(a=5).lists(a=5).after(30).lists(a=6)
    assert world.after(15).lists(a=6).stalled() == []
    assert world.after(10).lists(a=6).stalled() == ["pods"]


def test_a_stall_names_the_object_that_shows_it() -> None:
    world = World().lists(Watched.NODES, node1=3).after(25).lists(Watched.NODES, node1=3)
    assert str(world.freshness.stalls(20.0)[0]) == "watch of nodes is 25 s behind: no event of node1"


def test_a_late_event_ends_the_stall() -> None:
    assert World().lists(a=6).after(25).lists(a=6).hears(a=6).stalled() == []


def test_an_older_event_does_not_end_the_stall() -> None:
    assert World().lists(a=6).after(25).lists(a=6).hears(a=5).stalled() == ["pods"]


def test_a_busy_object_is_behind_only_since_the_first_version_that_was_missed() -> None:
    world = World().lists(a=6).after(15).hears(a=6).lists(a=7)
    assert world.after(15).lists(a=8).stalled() == []
    assert world.after(10).lists(a=9).stalled() == ["pods"]


def test_an_object_that_is_gone_proves_nothing() -> None:
    assert World().lists(a=6).after(25).lists(b=1).hears(b=1).stalled() == []


def test_the_list_of_one_run_does_not_hide_what_another_shows() -> None:
    world = World().lists(a=6, complete=False).after(25).lists(b=1, complete=False).hears(b=1)
    assert world.stalled() == ["pods"]


def test_time_without_lists_does_not_count() -> None:
    assert World().lists(a=6).after(600).stalled() == []


def test_after_an_api_server_that_was_away_the_watch_gets_a_new_chance() -> None:
    world = World().lists(a=6).after(GAP_SECONDS + 1).lists(a=6)
    assert world.stalled() == []
    assert world.after(25).lists(a=6).stalled() == ["pods"]


def test_an_event_that_came_before_the_first_list_counts() -> None:
    assert World().hears(a=6).after(25).lists(a=6).after(25).lists(a=6).stalled() == []


def test_an_object_created_while_a_list_was_made_is_not_forgotten() -> None:
    world = World().lists().hears(a=6).lists()
    assert world.after(25).lists(a=6).after(25).lists(a=6).stalled() == []


def test_what_is_gone_for_long_takes_no_memory() -> None:
    world = World().hears(a=6).after(KEEP_SECONDS + 1).lists(b=1)
    assert world.freshness._resources[Watched.PODS].heard == {}
