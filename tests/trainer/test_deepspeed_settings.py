"""DeepSpeed's configuration is made from the run, and what the engine cannot do is refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.trainer import parity
from tests.trainer.deepspeed_worlds import Kind, a_config, a_spec

from trainer.config import check_rung, read_config
from trainer.deepspeed_engine.settings import deepspeed_settings
from trainer.errors import ConfigError

KINDS = [Kind(1), Kind(2, "Optimizer", "BF16"), Kind(3, "OptimizerAndParameters")]


def values(settings: Any) -> Iterator[Any]:
    if isinstance(settings, dict):
        for value in settings.values():
            yield from values(value)
    else:
        yield settings


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_nothing_is_left_to_auto_and_clipping_is_always_said(kind: Kind, clip: float | None) -> None:
    settings = deepspeed_settings(a_config(kind, parity.tiny_model(), maxGradNorm=clip), kind.rung())
    assert all(value != "auto" and value is not None for value in values(settings))
    assert settings["gradient_clipping"] == (clip or 0.0)
    assert settings["zero_optimization"]["stage"] == kind.stage
    assert settings["bf16"]["enabled"] == (kind.precision == "BF16")
    assert ("offload_optimizer" in settings["zero_optimization"]) == (kind.offload != "None")
    assert ("offload_param" in settings["zero_optimization"]) == (kind.offload == "OptimizerAndParameters")


def test_the_batch_is_that_of_the_plan() -> None:
    kind = Kind(2, world=3)
    settings = deepspeed_settings(a_config(kind, parity.tiny_model()), kind.rung())
    assert settings["train_micro_batch_size_per_gpu"] == 2
    assert settings["gradient_accumulation_steps"] == 2
    assert settings["train_batch_size"] == 12, "eight sequences, and four that weigh nothing"


def test_gradients_are_summed_but_where_deepspeed_cannot() -> None:
    operations = [
        deepspeed_settings(a_config(Kind(stage), parity.tiny_model()), Kind(stage).rung())[
            "gradient_allreduce_op"
        ]
        for stage in (1, 2, 3)
    ]
    assert operations == ["sum", "sum", "mean"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"training.precision": "FP16"},
        "spec.training.precision: 'FP16': the engine DeepSpeed computes in FP32",
    ),
    ({"training.precision": "FP64"}, "spec.training.precision: 'FP64'"),
    (
        {"training.optimizer.name": "Muon"},
        "spec.training.optimizer.name: 'Muon': the engine DeepSpeed updates by",
    ),
    ({"training.overrides": {"zLoss": 0.1}}, "spec.training.overrides.zLoss: 0.1"),
    ({"training.overrides": {"emaDecay": 0.9}}, "spec.training.overrides.emaDecay: 0.9"),
    (
        {"parallelism.axes.tensor": 2},
        "spec.parallelism.axes.tensor: 2: the engine DeepSpeed splits by data only",
    ),
    ({"parallelism.axes.pipeline": 2}, "spec.parallelism.axes.pipeline: 2"),
    ({"parallelism.axes.context": 2}, "spec.parallelism.axes.context: 2"),
    ({"parallelism.sequenceParallel": True}, "spec.parallelism.sequenceParallel: True"),
    ({"parallelism.deepspeed.zeroStage": 4}, "spec.parallelism.deepspeed.zeroStage: 4"),
    ({"parallelism.deepspeed.offload": "Nvme"}, "spec.parallelism.deepspeed.offload: 'Nvme'"),
    ({"parallelism.deepspeed.offload": "OptimizerAndParameters"}, "keeps whole weights on each process"),
    ({"parallelism.engine": "Native"}, "spec.parallelism.deepspeed: .*only the engine DeepSpeed reads it"),
    ({"parallelism.engine": "Megatron"}, "spec.parallelism.engine: 'Megatron': not an engine"),
]


@pytest.mark.parametrize(("change", "problem"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_the_engine_cannot_do_is_refused_with_field_value_and_fix(
    change: dict[str, Any], problem: str
) -> None:
    spec = a_spec(Kind(2), parity.tiny_model())
    for path, value in change.items():
        *owners, key = path.split(".")
        block = spec
        for owner in owners:
            block = block[owner]
        block[key] = value
    with pytest.raises(ConfigError, match=problem) as refused:
        read_config(spec)
    assert "Fix: " in str(refused.value)


def test_a_plan_of_another_engine_or_stage_is_refused() -> None:
    kind = Kind(2)
    config = a_config(kind, parity.tiny_model())
    check_rung(config, kind.rung())
    for changes, field in (
        ({"engine": "Native", "zero_stage": 0}, "spec.parallelism.engine"),
        ({"zero_stage": 3}, "spec.parallelism.deepspeed.zeroStage"),
        ({"shard": 1, "replicate": 2}, "spec.parallelism.engine"),
    ):
        with pytest.raises(ConfigError, match=field):
            check_rung(config, replace(kind.rung(), **changes))
