"""A run cut over tensor, pipeline and data at once, on two nodes of four processes: what breaks and comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenarios.line import Line
from tests.scenarios.story import FP64_BOUND, Told, told

from trainingrun.protocol.records import RestoreSource, Trigger

pytestmark = pytest.mark.local_only  # eight ranks in step want two whole cores
STEPS = 60


def told_on_eight(folder: Path, story: Callable[[Line], None]) -> Told:
    return told(
        folder,
        story,
        steps=STEPS,
        parallelism__axes={"tensor": 2, "pipeline": 2},
        resources__processesPerNode=4,
        training__precision="FP64",
    )


def calm_story(line: Line) -> None:
    """Nothing happens."""


def test_tensor_pipeline_and_data_at_once_lose_a_node_and_get_it_back(tmp_path: Path) -> None:
    """The survivor holds whole copies of every stage and shard, so it goes on from memory at half the size."""
    calm = told_on_eight(tmp_path / "calm", calm_story)
    assert calm.triggers == [Trigger.STARTED]

    def story(line: Line) -> None:
        line.wait_for_step(20)
        node = line.node_of(slot=1)
        line.kill_node(node)
        line.wait_for(lambda now: now.members == 1, "the survivor alone")
        line.start_node(node)
        line.wait_for(lambda now: now.over or now.members == 2, "both nodes again")

    after = told_on_eight(tmp_path / "hurt", story)
    assert after.sizes[:2] == [2, 1]
    assert after.sources[1] is RestoreSource.MEMORY
    assert after.losses.furthest_from(calm.losses) <= FP64_BOUND
