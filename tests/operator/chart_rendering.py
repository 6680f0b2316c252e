"""The chart as helm renders it, for tests: objects by kind and name."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from tools.generate_chart import CHART, render
from tools.setup_tools import tool

Object = dict[str, Any]
IMAGES = {
    "image": {"repository": "trainingrun/operator"},
    "trainer": {"image": {"repository": "trainingrun/trainer"}},
}
"""What everybody must set; the values of a test come on top."""
NAMESPACE = "trainingrun-system"


class Rendered:
    def __init__(self, text: str) -> None:
        self.objects: list[Object] = [item for item in yaml.safe_load_all(text) if item]

    def all(self, *kinds: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] in kinds]

    def get(self, kind: str, name: str) -> Object:
        found = [item for item in self.all(kind) if item["metadata"]["name"] == name]
        assert len(found) == 1, f"{len(found)} of {kind} {name}"
        return found[0]

    def pod(self, program: str) -> Object:
        """The pod template of `controller` or `membership`."""
        template: Object = self.get("Deployment", f"trainingrun-{program}")["spec"]["template"]
        return template

    def container(self, program: str) -> Object:
        containers = self.pod(program)["spec"]["containers"]
        assert len(containers) == 1
        container: Object = containers[0]
        return container

    def environment(self, program: str) -> dict[str, str]:
        return {item["name"]: item["value"] for item in self.container(program)["env"]}

    def rules(self, program: str) -> list[tuple[str, Object]]:
        """(where, rule) of all that is bound to the program's account; where is a namespace or "" for everywhere."""
        subject = {"kind": "ServiceAccount", "name": f"trainingrun-{program}", "namespace": NAMESPACE}
        found = []
        for binding in self.all("RoleBinding", "ClusterRoleBinding"):
            if binding["subjects"] == [subject]:
                where = binding["metadata"].get("namespace", "")
                kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
                roles = [role for role in self.all(kind) if role["metadata"]["name"] == name]
                role = next(role for role in roles if role["metadata"].get("namespace", "") == where)
                found += [(where, rule) for rule in role["rules"]]
        return found


@functools.cache
def _rendered(values: str, arguments: tuple[str, ...], release: str) -> Rendered:
    with tempfile.TemporaryDirectory() as folder:
        images, file = Path(folder) / "images.json", Path(folder) / "values.json"
        images.write_text(json.dumps(IMAGES))
        file.write_text(values)
        given = ("--values", str(images), "--values", str(file))
        return Rendered(render(*given, *arguments, release=release, namespace=NAMESPACE))


def chart(values: Mapping[str, Any] | None = None, *arguments: str, release: str = "trainingrun") -> Rendered:
    """Raises CalledProcessError when helm refuses."""
    return _rendered(json.dumps(values or {}), arguments, release)


def refusal(values: Mapping[str, Any] | None = None, *arguments: str, release: str = "trainingrun") -> str:
    """What helm says when it refuses; fails when it does not."""
    try:
        chart(values, *arguments, release=release)
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    raise AssertionError(f"helm accepts {values} {arguments} {release}")


def default_values() -> Object:
    values: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def value_levels(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every mapping in the values, the outermost included."""
    yield path
    for key, value in values.items():
        if isinstance(value, dict):
            yield from value_levels(value, (*path, key))


def nested(path: tuple[str, ...], leaf: Any) -> Any:
    """{"a": {"b": leaf}} of ("a", "b")."""
    for key in reversed(path):
        leaf = {key: leaf}
    return leaf


def notes(values: Mapping[str, Any]) -> str:
    """What `helm install` tells the user."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "values.json"
        file.write_text(json.dumps({**IMAGES, **values}))
        command = [
            tool("helm"),
            "install",
            "trainingrun",
            CHART,
            "-n",
            NAMESPACE,
            "--dry-run=client",
            "-f",
            file,
        ]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.partition("\nNOTES:\n")[2]
