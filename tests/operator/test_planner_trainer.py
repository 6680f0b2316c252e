"""What the planner plans, the trainer accepts: its own checks, on 300 random runs.
`tests/trainer/test_planned_builds.py` builds them.
"""

from __future__ import annotations

from tests.trainer.planned_runs import PLANS, on_cores, plans

from trainer.config import check_rung, read_config


def test_the_trainer_refuses_no_plan() -> None:
    for _, spec, _, rung in plans():
        check_rung(read_config(on_cores(spec)), rung)


def test_the_plans_are_of_every_kind() -> None:
    """Else the tests of them say little."""
    rungs = [rung for _, _, _, rung in plans()]
    assert len(rungs) == PLANS
    for axis in ("tensor", "pipeline", "shard", "replicate", "context"):
        assert sum(getattr(rung, axis) > 1 for rung in rungs) >= PLANS // 20, axis
    assert {rung.schedule for rung in rungs} == {"1F1B", "Interleaved1F1B", "ZBV"}
    assert {rung.activation_checkpointing for rung in rungs} == {"None", "Selective", "Full"}
    assert sum(rung.sequence_parallel for rung in rungs) >= 5
    assert sum(rung.padding_sequences > 0 for rung in rungs) >= 5
