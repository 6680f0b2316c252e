"""The harness itself: a small run from start to end, and a failure that shows why."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.scenarios.lines import open_line
from tests.scenarios.manifests import small_manifest

pytestmark = pytest.mark.scenario


def test_a_small_run_survives_the_death_of_a_rank_completes_and_leaves_nothing(tmp_path: Path) -> None:
    line = open_line()
    with line:
        line.apply(small_manifest(tmp_path, training__duration={"steps": 30}))
        line.wait_for_step(5)
        line.kill_rank(slot=1, local_rank=0)
        line.wait_for(lambda now: now.epoch >= 2, "a second epoch")
        end = line.wait_for_end()
        assert end.status["progress"]["step"] == 30
        assert [node.ready for node in line.nodes()] == [True, True]
        with pytest.raises(AssertionError, match="not within 0 s: rain") as caught:
            line.wait_for(lambda now: False, "rain", timeout_seconds=0)
        assert "agent: " in str(caught.value)
    assert line.leaks() == []
