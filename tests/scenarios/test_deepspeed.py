"""A run of the engine DeepSpeed on the whole line: what breaks comes back at the same size, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenarios.line import Line, Moment
from tests.scenarios.story import Told, told

from trainingrun.protocol.records import RestoreSource, Trigger

pytestmark = [pytest.mark.scenario, pytest.mark.local_only, pytest.mark.timeout(300)]
STEPS = 60


def told_by_deepspeed(folder: Path, story: Callable[[Line], None]) -> Told:
    return told(
        folder,
        story,
        steps=STEPS,
        scale={"minNodes": 2, "maxNodes": 2},
        resources__processesPerNode=1,
        parallelism={"engine": "DeepSpeed", "deepspeed": {"zeroStage": 2, "offload": "Optimizer"}},
        checkpoint__durable={"intervalSteps": 10, "keepLast": 3},
    )


def calm_story(line: Line) -> None:
    """Nothing happens."""


def waits_for_its_node(now: Moment) -> bool:
    told = "does not go on with fewer"
    return any(
        item["type"] == "Ready" and item["reason"] == "WaitingForNodes" and told in item["message"]
        for item in now.status.get("conditions") or []
    )


def test_a_killed_rank_is_back_from_memory_and_a_lost_node_is_waited_for(tmp_path: Path) -> None:
    """Without its node the run waits: there is no smaller size. Then it goes on from what the other node kept."""
    calm = told_by_deepspeed(tmp_path / "calm", calm_story)
    assert calm.triggers == [Trigger.STARTED]

    def story(line: Line) -> None:
        line.wait_for_step(12)
        line.kill_rank(slot=1, local_rank=0)
        line.wait_for_step(30)
        node = line.node_of(slot=1)
        line.kill_node(node)
        line.wait_for(waits_for_its_node, "told that it waits for its node")
        line.start_node(node)

    after = told_by_deepspeed(tmp_path / "hurt", story)
    assert after.sizes == [2, 2, 2]
    assert after.triggers[:2] == [Trigger.STARTED, Trigger.PROCESS_DIED]
    assert after.sources == [RestoreSource.INITIAL, RestoreSource.MEMORY, RestoreSource.MEMORY]
    assert after.losses.furthest_from(calm.losses) == 0.0
