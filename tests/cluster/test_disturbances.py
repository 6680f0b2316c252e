"""Pods and nodes that go away on a real cluster: the run goes on, is whole again, and nothing happens twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.cluster.disturbances import (
    KUBERNETES_SECONDS,
    counted,
    goes_on,
    grows_to,
    is_leaving,
    late_work,
    lost_since,
    still,
    tell,
)
from tests.scenarios.cluster_line import ClusterLine
from tests.scenarios.line import Moment
from tests.scenarios.story import FP64_BOUND, Told

from trainingrun.protocol.records import RestoreSource, Trigger

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


def test_deleted_pods_are_replaced_one_or_two_at_once(calm: Told, folder: Path) -> None:
    def story(line: ClusterLine) -> None:
        first = time.time()
        line.delete_pods(1)
        goes_on(line, 2)
        grows_to(line, 3, lambda: counted(line, 1, first))
        second = time.time()
        line.delete_pods(0, 2)
        goes_on(line, 1)
        grows_to(line, 3, lambda: counted(line, 2, second))

    after = tell(folder, story, nodes=3)
    assert after.pods == ["0-0", "0-1", "1-0", "1-1", "2-0", "2-1"]
    assert {epoch.trigger for epoch in after.told.epochs[1:]} == {Trigger.MEMBER_LOST, Trigger.JOINED}
    assert RestoreSource.INITIAL not in after.told.sources[1:]
    assert after.told.losses.furthest_from(calm.losses) <= FP64_BOUND


def test_a_partitioned_node_is_replaced_and_does_no_harm_when_it_is_back(calm: Told, folder: Path) -> None:
    def story(line: ClusterLine) -> None:
        cut_off, spare = line.node_of(0), line.cluster.nodes[-1]  # rank 0 commits the checkpoints
        line.offer(spare)
        line.cluster.partition(cut_off)
        goes_on(line, 1)
        grows_to(line, 2, lambda: counted(line, 1, lost_since(line, cut_off)))
        assert line.node_of(0) == spare
        assert is_leaving(line, 0, 0)
        with still(line):
            line.cluster.heal(cut_off)
            line.wait_for(lambda _: not is_leaving(line, 0, 0), "the old pod is gone", KUBERNETES_SECONDS)

    after = tell(folder, story)
    assert after.told.sizes == [2, 1, 2]
    assert after.pods == ["0-0", "0-1", "1-0"]
    assert after.told.triggers == [Trigger.STARTED, Trigger.MEMBER_LOST, Trigger.JOINED]
    assert RestoreSource.INITIAL not in after.told.sources[1:]
    assert late_work(after.told, folder) == []
    assert after.told.losses.furthest_from(calm.losses) <= FP64_BOUND


def test_a_node_without_power_is_waited_for_or_replaced_where_there_is_room(calm: Told, folder: Path) -> None:
    def story(line: ClusterLine) -> None:
        dark, spare = line.node_of(1), line.cluster.nodes[-1]
        line.cluster.power_off(dark)
        goes_on(line, 1)

        def without_room() -> None:
            counted(line, 1, lost_since(line, dark))
            line.wait_for(waits_for_a_node, "a replacement that no node takes", KUBERNETES_SECONDS)
            assert is_leaving(line, 1, 0)
            line.cluster.power_on(dark)

        grows_to(line, 2, without_room)
        assert line.node_of(1) == dark

        line.offer(spare)
        line.cluster.power_off(dark)
        goes_on(line, 1)
        grows_to(line, 2, lambda: counted(line, 2, lost_since(line, dark)))
        assert line.node_of(1) == spare
        assert is_leaving(line, 1, 1)
        line.cluster.power_on(dark)

    after = tell(folder, story)
    assert after.told.sizes == [2, 1, 2, 1, 2]
    assert after.pods == ["0-0", "1-0", "1-1", "1-2"]
    assert RestoreSource.INITIAL not in after.told.sources[1:]
    assert late_work(after.told, folder) == []
    assert after.told.losses.furthest_from(calm.losses) <= FP64_BOUND


def waits_for_a_node(now: Moment) -> bool:
    return any(pod.slot == 1 and pod.incarnation == 1 and pod.reason == "Unschedulable" for pod in now.pods)
