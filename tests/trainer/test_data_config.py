"""spec.data as the trainer reads it: what cannot be is refused before a process trains."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.config.data import MixtureStage, read_data
from trainer.errors import ConfigError

RUN_TOKENS = 10_000


def a_data(*weights: int | None, **changes: Any) -> dict[str, Any]:
    sources = [
        {"name": name, "uri": f"file:///{name}", "format": "Text", "weight": weight}
        for name, weight in zip("abc", weights, strict=False)
    ]
    return {"seed": 3, "sources": sources, "validation": [], "packing": "Concatenate", "stages": []} | changes


def a_stage(after: int, **weights: int) -> dict[str, Any]:
    named = [{"name": name, "weight": weight} for name, weight in weights.items()]
    return {"afterTokens": after, "weights": named}


def test_weights_and_stages_are_by_source() -> None:
    stages = [a_stage(100, c=1), a_stage(9_999, b=3, a=2)]
    config = read_data(a_data(7, 2, 0, stages=stages, packing="BestFit"), RUN_TOKENS)
    assert (config.seed, config.packing, config.sources) == (3, "BestFit", ("a", "b", "c"))
    assert config.stages == (
        MixtureStage(0, (7, 2, 0)),
        MixtureStage(100, (0, 0, 1)),
        MixtureStage(9_999, (2, 3, 0)),
    )


def test_a_specification_of_an_earlier_version_is_read() -> None:
    old = {
        "seed": 0,
        "sources": [{"name": "a", "uri": "file:///a", "format": "Text"}],
        "packing": "Concatenate",
    }
    assert read_data(old, RUN_TOKENS).stages == (MixtureStage(0, (1,)),)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            a_data(1, packing="Worst"),
            r"spec.data.packing: 'Worst': not supported. Fix: use one of Concatenate, Best",
        ),
        (a_data(1, None), r"spec.data.sources\[1\].weight: None: needed, as there are 2 sources"),
        (a_data(0, 0), r"spec.data.sources: \[0, 0\]: no source has a weight"),
        (a_data(1, -1), r"spec.data.sources\[1\].weight: -1: less than 0"),
        (
            a_data(1, 1, stages=[a_stage(5, d=1)]),
            r"stages\[0\].weights\[0\].name: 'd': is no source. Fix: use one",
        ),
        (a_data(1, 1, stages=[a_stage(5, a=0)]), r"stages\[0\].weights: \[0, 0\]: no source has a weight"),
        (
            a_data(1, 1, stages=[a_stage(7, a=1), a_stage(7, b=1)]),
            r"stages\[1\].afterTokens: 7: does not come after the stage before it \(from 7 tokens\)",
        ),
        (
            a_data(1, stages=[a_stage(10_000, a=1)]),
            r"stages\[0\].afterTokens: 10000: the run is over after 10000 tok",
        ),
        (
            a_data(1, stages=[a_stage(5, a=1) | {"weights": [{"name": "a", "weight": 1}] * 2}]),
            r"stages\[0\].weights\[1\].name: 'a': is given twice",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_field_value_and_fix(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read_data(data, RUN_TOKENS)
    assert ". Fix: " in str(raised.value)


def test_a_name_that_is_given_twice_is_refused() -> None:
    data = a_data(1, 1)
    data["sources"][1]["name"] = "a"
    with pytest.raises(ConfigError, match=r"spec.data.sources\[1\].name: 'a': is given twice"):
        read_data(data, RUN_TOKENS)
