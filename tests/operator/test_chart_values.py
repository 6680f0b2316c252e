"""Values of the chart: what is wrong is refused and named, and the documentation is what is there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.operator.chart_rendering import chart, default_values, nested, refusal, value_levels
from tools import generate_chart
from tools.generate_chart import CHART

FREE = {"nodeSelector", "podAnnotations", "podLabels", "serviceAccountAnnotations", "labels"}
"""Maps whose keys are the user's."""
QUANTITIES = {"requests", "limits"}
CLOSED = [path for path in value_levels(default_values()) if not FREE & set(path)]


@pytest.mark.parametrize("path", CLOSED, ids=lambda path: ".".join(path) or "top")
def test_a_misspelt_value_is_refused_at_every_level(path: tuple[str, ...]) -> None:
    typo = "Replicas" if not QUANTITIES & set(path) else "memroy"
    said = refusal(nested((*path, typo), {"x": 1}))
    assert f"'{typo}'" in said or f"'{'/'.join(('', *path, typo))}'" in said


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("image.pullPolicy", "Sometimes"),
        ("image.tag", "a tag"),
        ("image.digest", "sha256:12"),
        ("image.repository", "a name"),
        ("watchNamespaces", "team-a"),
        ("watchNamespaces", ["Team A"]),
        ("crds.keep", "yes"),
        ("controller.resources.limits.memory", "1 GB"),
        ("controller.podLabels.a", 1),
        ("membership.tolerations", [{"operator": "Always"}]),
        ("networkPolicy.apiServerPorts", [0]),
        ("podMonitor.interval", "often"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_and_named(path: str, value: Any) -> None:
    keys = tuple(path.split("."))
    assert "/".join(("", *keys)) in refusal(nested(keys, value))


def test_a_value_that_is_taken_away_is_missed() -> None:
    assert "missing property 'resources'" in refusal({"controller": {"resources": None}})


@pytest.mark.parametrize(
    "values", [{"image": {"repository": ""}}, {"trainer": {"image": {"repository": ""}}}]
)
def test_without_its_images_nothing_is_installed(values: dict[str, Any]) -> None:
    assert "set image.repository and trainer.image.repository" in refusal(values)


@pytest.mark.parametrize("release", ["a" * 41, "1st", "a.b"])
def test_a_release_that_cannot_name_a_service_is_refused(release: str) -> None:
    assert f'release name "{release}" cannot name a Service' in refusal(release=release)


def test_a_pod_monitor_without_its_api_is_refused() -> None:
    assert "podMonitor.enabled is true" in refusal({"podMonitor": {"enabled": True}})


def test_a_parent_chart_may_pass_what_it_passes_to_all() -> None:
    assert chart({"global": {"anything": 1}}).all("Deployment")


def test_the_schema_knows_exactly_the_values_that_there_are() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(level: dict[str, Any], values: dict[str, Any]) -> None:
        level = schema["$defs"][level["$ref"].rpartition("/")[2]] if "$ref" in level else level
        if level.get("additionalProperties") is not False or "required" not in level:
            return
        assert set(level["required"]) == set(values)
        assert set(level["properties"]) - {"global"} == set(values)
        for key, value in values.items():
            if isinstance(value, dict):
                compare(level["properties"][key], value)

    compare(schema, default_values())


def test_every_value_is_documented() -> None:
    documented = {path for path, _ in generate_chart.documented_values((CHART / "values.yaml").read_text())}

    def undocumented(values: dict[str, Any], path: str = "") -> list[str]:
        found = []
        for key, value in values.items():
            here = f"{path}.{key}" if path else key
            if here in documented:
                continue
            found += undocumented(value, here) if isinstance(value, dict) and value else [here]
        return found

    assert undocumented(default_values()) == []


def test_what_is_generated_is_up_to_date() -> None:
    assert generate_chart.main(["--check"]) == 0
