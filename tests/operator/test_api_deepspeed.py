"""A run of the engine DeepSpeed: what it may ask for, and that everything else is refused with field, value and fix."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.crd_cases import DEEPSPEED
from tests.operator.api_builders import BASE, manifest, only_error

from trainingrun.api.load import parse, resolve

Change = tuple[str, Any]


def resolved(*changes: Change) -> dict[str, Any]:
    return resolve(parse(manifest(*changes), BASE), BASE)


def test_a_run_may_ask_for_a_stage_and_for_offload_and_need_ask_for_nothing() -> None:
    assert resolved(*DEEPSPEED)["parallelism"]["deepspeed"] is None
    asked = ("spec/parallelism/deepspeed", {"zeroStage": 3, "offload": "OptimizerAndParameters"})
    assert resolved(*DEEPSPEED, asked)["parallelism"]["deepspeed"] == asked[1]
    assert resolved(*DEEPSPEED, ("spec/parallelism/deepspeed", {}))["parallelism"]["deepspeed"] == {
        "zeroStage": None,
        "offload": "None",
    }
    ones = ("spec/parallelism/axes", {"tensor": 1, "pipeline": 1, "context": 1})
    assert resolved(*DEEPSPEED, ones)["parallelism"]["engine"] == "DeepSpeed"
    resolved(*DEEPSPEED, ("spec/training/precision", "BF16"), ("spec/training/overrides", {"zLoss": 0}))


@pytest.mark.parametrize(
    ("path", "value", "field", "message", "fix"),
    [
        ("scale", {"minNodes": 1, "maxNodes": 2}, "scale.minNodes", "has one size", "set both to 1 or 2"),
        ("training/precision", "FP16", "training.precision", "FP32 and BF16 only", "use one of them"),
        ("training/optimizer/name", "Muon", "training.optimizer.name", "by AdamW only", "use AdamW"),
        ("training/optimizer/name", "AdamW8bit", "training.optimizer.name", "by AdamW only", "use AdamW"),
        ("training/overrides", {"zLoss": 1e-4}, "training.overrides.zLoss", "has no zLoss", "remove it"),
        ("training/overrides", {"emaDecay": 0.9}, "training.overrides.emaDecay", "no emaDecay", "remove it"),
        ("training/overrides", {"compile": True}, "training.overrides.compile", "no compile", "remove it"),
        ("parallelism/axes", {"tensor": 2}, "parallelism.axes.tensor", "by data only", "remove it"),
        ("parallelism/axes", {"context": 2}, "parallelism.axes.context", "by data only", "remove it"),
        ("parallelism/pipelineSchedule", "ZBV", "parallelism.pipelineSchedule", "by data only", "remove it"),
        ("parallelism/sequenceParallel", True, "parallelism.sequenceParallel", "by data only", "remove it"),
        (
            "parallelism/deepspeed",
            {"zeroStage": 1, "offload": "OptimizerAndParameters"},
            "parallelism.deepspeed.offload",
            "needs zeroStage 3",
            "use Optimizer, or zeroStage: 3",
        ),
        ("parallelism/deepspeed", {"zeroStage": 4}, "parallelism.deepspeed.zeroStage", "4 is more than", "3"),
        ("parallelism/deepspeed", {"offload": "Nvme"}, "parallelism.deepspeed.offload", "Nvme", "use"),
    ],
)
def test_what_it_cannot_do_is_refused(path: str, value: Any, field: str, message: str, fix: str) -> None:
    error = only_error(*DEEPSPEED, (f"spec/{path}", value))
    assert error.path == f"spec.{field}"
    assert message in error.message
    assert fix in error.fix


def test_its_block_does_nothing_for_the_engine_native_and_is_refused_there() -> None:
    error = only_error(("spec/parallelism", {"deepspeed": {"zeroStage": 2}}))
    assert error.path == "spec.parallelism.deepspeed"
    assert error.fix == "remove it, or use engine: DeepSpeed"
