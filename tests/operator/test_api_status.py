"""The status: its form, and that it stays small whatever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from tests.operator.status_builders import a_status

from trainingrun.api.constants import Cause, LostPart
from trainingrun.api.status import (
    FAILURE_MESSAGE_LIMIT,
    MEASURED_SIZES,
    RECENT_DISRUPTIONS,
    Disruption,
    Goodput,
    TrainingRunStatus,
    read_status,
    status_json,
)

FULL: dict[str, Any] = a_status(
    output={"export": "file:///data/model"},
    failure={"cause": "Application", "slot": 1, "node": "node-1", "exitCode": 1, "message": "ValueError"},
)


def test_a_full_status_reads_and_writes_the_same() -> None:
    assert set(FULL) == {to_camel(name) for name in TrainingRunStatus.model_fields}
    assert status_json(read_status(FULL)) == FULL


def test_an_empty_status_is_a_status() -> None:
    assert status_json(read_status({})) == {"observedGeneration": 0, "conditions": []}


def test_a_field_of_a_newer_controller_is_no_error() -> None:
    newer = {**FULL, "quarantine": [{"node": "n3"}]}
    assert status_json(read_status(newer)) == FULL


def test_blocks_are_built_by_their_python_names() -> None:
    goodput = Goodput(permille=900, wall_seconds=10, productive_seconds=9)
    built = status_json(TrainingRunStatus(observed_generation=1, goodput=goodput))
    assert built["goodput"] == {"permille": 900, "wallSeconds": 10, "productiveSeconds": 9, "lost": []}


@pytest.mark.parametrize(
    ("block", "field", "value"),
    [
        ("goodput", "permille", 1001),
        ("membership", "cause", "Weather"),
        ("membership", "since", "yesterday"),
        ("progress", "loss", "low"),
        ("progress", "step", -1),
        ("failure", "message", "x" * (FAILURE_MESSAGE_LIMIT + 1)),
        ("output", "export", "x" * 2000),
    ],
)
def test_what_the_crd_would_refuse_is_refused_before_it_is_sent(
    block: str, field: str, value: object
) -> None:
    with pytest.raises(ValidationError):
        read_status({**FULL, block: {**FULL[block], field: value}})


def test_the_newest_disruptions_are_bounded() -> None:
    one = FULL["disruptions"]["recent"][0]
    too_many = {**FULL["disruptions"], "recent": [one] * (RECENT_DISRUPTIONS + 1)}
    with pytest.raises(ValidationError):
        read_status({**FULL, "disruptions": too_many})


def test_the_largest_status_stays_below_its_budget() -> None:
    longest = Disruption(
        epoch=2**53, cause=Cause.INFRASTRUCTURE, node="n" * 253, recover_millis=2**53, source="Initial"
    )
    largest = {
        **FULL,
        "conditions": [{**one, "message": "m" * 1024} for one in FULL["conditions"]],
        "disruptions": {
            "accountedEpoch": 2**53,
            "byCause": [{"cause": cause.value, "count": 2**53} for cause in Cause],
            "lostSteps": 2**53,
            "recent": [longest.model_dump(mode="json", by_alias=True)] * RECENT_DISRUPTIONS,
        },
        "goodput": {**FULL["goodput"], "lost": [{"part": part.value, "seconds": 2**53} for part in LostPart]},
        "failure": {**FULL["failure"], "message": "x" * FAILURE_MESSAGE_LIMIT},
        "accounting": {
            **FULL["accounting"],
            "measured": [
                {
                    "nodes": 2**20 - size,
                    "steps": 2**53,
                    "stepMicros": 2**53,
                    "peakBytes": 2**53,
                    "microBatch": 2**53,
                }
                for size in range(MEASURED_SIZES)
            ],
        },
    }
    assert len(json.dumps(status_json(read_status(largest)))) < 32 * 1024
