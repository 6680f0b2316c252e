"""A small world with a run in it, the story of a whole run, and what must hold of its counters."""

from __future__ import annotations

from tests.operator.control_builders import (
    InstantPlans,
    a_spec,
    failed,
)
from tests.operator.fake_port import FakeWorld

from trainingrun.control.counters import read_counters
from trainingrun.control.failures import is_disruption
from trainingrun.protocol.records import RankExit


def a_world(nodes: int = 2) -> FakeWorld:
    spec = a_spec()
    spec["recovery"] = {"limits": [], "noProgressLimit": 1000}
    return FakeWorld({"spec": spec}, nodes)


def check_counters(world: FakeWorld) -> None:
    """Counted once each: status agrees with the records, whoever folded them and when."""
    counters = read_counters(world.status)
    assert counters.accounted_epoch == len(world.epoch_list)
    broken = [record for record in world.epoch_list if is_disruption(record)]
    assert sum(counters.by_cause.values()) == len(broken)
    assert counters.ledger.wall == accounted_millis(world)


def accounted_millis(world: FakeWorld) -> int:
    """The ledger is as of the creation of the newest record, to the millisecond."""
    assert world.run is not None
    if not world.epoch_list:
        return 0
    return round(world.epoch_list[-1].created_at * 1000) - round(world.run.created_at * 1000)


def story(world: FakeWorld, plans: InstantPlans, run_controller) -> None:
    """A whole run: start, a lost node, a dead rank, a failed pod, the end."""

    def turn(seconds: float = 3.0) -> None:
        run_controller()
        world.kubelet()
        world.membership_round()
        world.at += seconds

    for _ in range(4):
        turn()
    world.lose_node("node-1")
    for _ in range(3):
        turn()
    world.node_back("node-1")
    for _ in range(3):
        turn()
    world.membership_round((RankExit(0, 1, 1, "ValueError: boom"),))
    for _ in range(2):
        turn()
    name = world.live(0)[0].name
    world.change(name, **failed())
    for _ in range(4):
        turn()
    world.finish()
    run_controller()
    run_controller()
