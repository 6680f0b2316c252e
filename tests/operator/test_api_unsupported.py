"""What the API will have but this version does not do is refused by name, never ignored."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.api_builders import BASE, a_pod_template, manifest, only_error

from trainingrun.api import unsupported
from trainingrun.api.load import parse
from trainingrun.api.models import TrainingRun
from trainingrun.api.translate import fields_at

POD = "spec.podTemplate"

# The intended shape of the API: each field that does not act yet, with a value as a user would write it.
FIELDS: list[tuple[str, Any]] = [
    ("spec/suspend", False),
    ("spec/managedBy", "trainingrun.dev/controller"),
    ("spec/profileRef", {"name": "h100-efa"}),
    ("spec/dependsOn", [{"name": "prepare", "condition": "Complete"}]),
    ("spec/model/secretRef", {"name": "hf-token"}),
    ("spec/model/trustRemoteCode", False),
    ("spec/model/adapter", {"method": "LoRA", "rank": 32}),
    ("spec/data/sources/0/revision", "v3"),
    ("spec/data/sources/0/runRef", {"name": "prepare", "output": "code"}),
    ("spec/data/secretRef", {"name": "lake"}),
    ("spec/training/duration/epochs", 3),
    ("spec/sft", {"loss": "AssistantOnly"}),
    ("spec/dpo", {"beta": 0.1}),
    ("spec/evaluate", {"suites": []}),
    ("spec/prepare", {"steps": []}),
    ("spec/scale/unitNodes", 1),
    ("spec/scale/spareNodes", 1),
    ("spec/resources/capacityType", "PreferSpot"),
    ("spec/resources/topology", {"preferred": "topology.kubernetes.io/block"}),
    ("spec/parallelism/axes/data", 2),
    ("spec/parallelism/axes/expert", 2),
    ("spec/parallelism/onResize", "KeepModelParallel"),
    ("spec/checkpoint/location/secretRef", {"name": "lake"}),
    ("spec/checkpoint/durable/keepEverySteps", 5000),
    ("spec/recovery/onOutOfMemory", "Replan"),
    ("spec/recovery/onLossSpike", {"action": "Rollback", "max": 2}),
    ("spec/recovery/hangTimeoutSeconds", 120),
    ("spec/recovery/forceDelete", "WhenProven"),
    ("spec/recovery/keepFailedPods", 1),
    ("spec/evaluation", {"best": {"metric": "heldout/loss"}}),
    ("spec/output/mergeAdapter", True),
    ("spec/tracking", {"mlflow": {"uri": "http://mlflow:5000"}}),
    ("spec/queueing", {"queueName": "team-a"}),
    ("spec/activeDeadlineSeconds", 604800),
    ("spec/ttlSecondsAfterFinished", 86400),
]

VALUES: list[tuple[str, str]] = [
    *(("spec/task", task) for task in ("sft", "dpo", "evaluate", "prepare")),
    ("spec/model/init", "Resume"),
    *(("spec/data/sources/0/format", form) for form in ("Messages", "Pairs")),
    ("spec/training/precision", "FP8"),
]


@pytest.mark.parametrize(("path", "value"), FIELDS)
def test_a_field_that_does_not_act_yet_is_refused_with_what_to_do(path: str, value: Any) -> None:
    error = only_error((path, value))
    assert error.path == path.replace("/0/", "[0]/").replace("/", ".")
    assert error.message == "not supported by this version"
    assert error.fix.startswith(("remove it", "use "))


@pytest.mark.parametrize(("path", "value"), VALUES)
def test_a_value_that_does_not_act_yet_is_refused_with_those_that_do(path: str, value: str) -> None:
    error = only_error((path, value))
    assert error.message == f"{value} is not supported by this version"
    assert error.fix.startswith("use ")
    assert value not in error.fix


def test_a_cause_that_does_not_act_yet_is_refused() -> None:
    error = only_error(("spec/recovery/limits", [{"cause": "Hang", "max": 1}]))
    assert error.path == "spec.recovery.limits[0].cause"
    assert error.message == "Hang is not supported by this version"


def test_adopting_the_checkpoints_of_another_run_is_refused_and_not_adopting_is_not() -> None:
    error = only_error(("spec/checkpoint/adopt", True))
    assert error.path == "spec.checkpoint.adopt"
    assert error.message == "true is not supported by this version"
    assert error.fix == unsupported.ADOPT_FIX
    parse(manifest(("spec/checkpoint/adopt", False)), BASE)


@pytest.mark.parametrize("path", [path for path in unsupported.FIELDS if path.startswith(POD)])
def test_what_would_break_the_pods_is_refused_with_what_to_do(path: str) -> None:
    field = path.replace("[]", "/0").replace(".", "/")
    error = only_error(("spec/podTemplate", a_pod_template()), (field, {"x": 1}))
    assert error.path == path.replace("[]", "[0]")
    assert error.message == "not supported by this version"
    assert error.fix.startswith(("remove it", "use "))


def test_every_field_of_the_table_is_tried_here() -> None:
    tried = {path.replace("/0/", "[]/").replace("/", ".") for path, _ in FIELDS}
    tried |= {path for path in unsupported.FIELDS if path.startswith(POD)}
    in_validation = {path for path in unsupported.FIELDS if path.startswith("spec.data.validation[].")}
    assert set(unsupported.FIELDS) - in_validation == tried


def test_no_field_of_the_table_acts() -> None:
    for path in unsupported.FIELDS:
        *parents, last = path.replace("[]", "").split(".")
        fields = fields_at(TrainingRun, tuple(parents))
        assert fields, f"{path}: its block is not in the models"
        assert last not in fields, f"{path} acts now: remove it from the table"


def test_other_tasks_blocks_say_that_they_are_planned() -> None:
    assert str(only_error(("spec/sft", {}))) == (
        "spec.sft: not supported by this version\n  hint: remove it; tasks other than pretrain are planned"
    )
