"""spec.data: mixtures, stages and packing, as a user writes them and as they are resolved."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.api_builders import BASE, manifest, only_error, refusal

from trainingrun.api.load import parse, resolve

SOURCES: list[dict[str, Any]] = [
    {"name": "web", "uri": "s3://lake/web", "format": "Tokens", "weight": 70},
    {"name": "code", "uri": "https://host.example:8443/code/store", "format": "Tokens", "weight": 20},
    {"name": "books", "uri": "pvc://claim/books", "format": "Text", "weight": 0},
]
ANNEALING = {"afterTokens": 1000, "weights": [{"name": "books", "weight": 3}, {"name": "web", "weight": 1}]}


def test_a_mixture_with_stages_is_resolved_as_it_is_written() -> None:
    changes = (
        ("spec/data/sources", SOURCES),
        ("spec/data/stages", [ANNEALING]),
        ("spec/data/packing", "BestFit"),
    )
    data = resolve(parse(manifest(*changes), BASE), BASE)["data"]
    assert [source["weight"] for source in data["sources"]] == [70, 20, 0]
    assert data["sources"][0]["uri"] == "s3://lake/web"
    assert data["stages"] == [ANNEALING]
    assert data["packing"] == "BestFit"


def test_one_source_needs_no_weight() -> None:
    data = resolve(parse(manifest(), BASE), BASE)["data"]
    assert (data["sources"][0]["weight"], data["stages"]) == (None, [])


@pytest.mark.parametrize("packing", ["Concatenate", "BestFit", "None"])
def test_each_way_of_packing_is_accepted(packing: str) -> None:
    assert parse(manifest(("spec/data/packing", packing)), BASE).spec.data.packing == packing


def _sources(*changes: dict[str, Any]) -> tuple[str, Any]:
    return "spec/data/sources", [one | change for one, change in zip(SOURCES, changes, strict=False)]


def _stages(*stages: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return ("spec/data/sources", SOURCES), ("spec/data/stages", list(stages))


@pytest.mark.parametrize(
    ("changes", "path", "message", "hint"),
    [
        ((_sources({"weight": None}, {}),), "sources[0].weight", "required, as there are 2 sources", "share"),
        ((_sources({"weight": -1}),), "sources[0].weight", "-1 is less than the minimum, 0", "at least 0"),
        ((_sources({"weight": 0}, {"weight": 0}),), "sources", "no source has a weight above 0", "raise"),
        (
            (_sources({}, {"name": "web"}),),
            "sources[1].name",
            "'web' is there already, as sources[0]",
            "rename",
        ),
        (
            _stages({"afterTokens": 5, "weights": [{"name": "wiki", "weight": 1}]}),
            "stages[0].weights[0].name",
            "'wiki' is the name of no source",
            "use one of: web, code, books",
        ),
        (
            _stages(ANNEALING, ANNEALING),
            "stages[1].afterTokens",
            "1000 is not more than that of the stage before, 1000",
            "in order",
        ),
        (
            _stages({"afterTokens": 5, "weights": [{"name": "web", "weight": 1}] * 2}),
            "stages[0].weights[1].name",
            "'web' is there already, as weights[0]",
            "remove",
        ),
        (
            _stages({"afterTokens": 5, "weights": [{"name": "web", "weight": 0}]}),
            "stages[0].weights",
            "no source has a weight above 0",
            "raise",
        ),
        (
            _stages(ANNEALING | {"afterTokens": 300 * 32 * 128}),
            "stages[0].afterTokens",
            "1228800 tokens are not before the end of the run: 300 steps x 32 sequences x 128 tokens = 1228800",
            "lower it, or train longer",
        ),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(changes: Any, path: str, message: str, hint: str) -> None:
    error = only_error(*changes)
    assert error.path == f"spec.data.{path}"
    assert message in error.message
    assert hint in error.fix


def test_validation_has_no_weight() -> None:
    error = only_error(("spec/data/validation", [SOURCES[0]]))
    assert error.path == "spec.data.validation[0].weight"


def test_there_are_at_most_64_sources() -> None:
    many = [{"name": f"s{number}", "uri": "file:///a", "format": "Text", "weight": 1} for number in range(65)]
    assert "at most 64" in str(refusal(("spec/data/sources", many)))
