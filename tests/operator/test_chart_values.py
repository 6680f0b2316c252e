"""Values of the chart: what is wrong is refused and named, and the documentation is what is there."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.operator.chart_rendering import chart, default_values, nested, refusal, value_levels
from tools import chart_settings, generate_chart
from tools.generate_chart import CHART

from trainingrun.cluster.kubernetes.settings import KubeSettings

FREE = {"nodeSelector", "podAnnotations", "podLabels", "serviceAccountAnnotations", "labels"}
"""Maps whose keys are the user's."""
QUANTITIES = {"requests", "limits"}
OTHER: dict[str, Any] = {
    "trainer_image": "elsewhere/trainer",
    "trainer_image_pull_policy": "Never",
    "watch_namespaces": ["team-a"],
    "log_format": "json",
    "log_level": "DEBUG",
    **dict.fromkeys(chart_settings.TIMES, 12.5),
}
"""By setting: a value that is not its default."""
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
        ("times.resyncSeconds", 0),
        ("times.requestSeconds", 61),
        ("times.cacheSeconds", "5"),
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


def test_every_setting_is_a_value_or_has_a_reason_why_it_is_none() -> None:
    values = {*chart_settings.NAMED, *chart_settings.TIMES}
    assert values | chart_settings.INTERNAL.keys() == {item.name for item in fields(KubeSettings)}
    assert not values & chart_settings.INTERNAL.keys()
    assert all(chart_settings.INTERNAL.values())


@pytest.mark.parametrize("program", ["controller", "membership"])
def test_a_value_decides_its_setting_and_no_other(program: str) -> None:
    default = KubeSettings.from_environment(chart().environment(program))
    for name, value in OTHER.items():
        values = nested(tuple(chart_settings.value_of(name).split(".")), value)
        settings = KubeSettings.from_environment(chart(values).environment(program))
        changed = {item.name for item in fields(KubeSettings) if item.name != name}
        assert {item: getattr(settings, item) for item in changed} == {
            item: getattr(default, item) for item in changed
        }
        assert getattr(settings, name) != getattr(default, name)


def test_the_times_of_the_chart_are_those_of_the_code_until_somebody_changes_them() -> None:
    settings = KubeSettings.from_environment(chart().environment("controller"))
    written = {item.name: item.default for item in fields(KubeSettings) if item.name.endswith("_seconds")}
    assert {name: getattr(settings, name) for name in written} == written


def test_a_block_that_is_not_there_exactly_once_is_no_reason_to_write_anything(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    for text, count in (("log: {}\n", 0), ("times:\n  a: 1\n\ntimes:\n  a: 2\n", 2)):
        file.write_text(text)
        with pytest.raises(SystemExit, match=f"exactly one block that begins with times, and has {count}"):
            generate_chart.with_block(file, re.compile(r"^times:\n(?: .*\n)*", re.M), "times:\n")


def test_what_is_generated_is_up_to_date() -> None:
    assert generate_chart.main(["--check"]) == 0
