"""The CRD: what Kubernetes demands of it, what we demand of it, and that it says the same as the models."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel, Field
from tests.cluster.crd_cases import CREATES, RESIZED, UNBREAKABLE, UPDATES
from tests.operator.api_builders import BASE, ROOT, manifest

from trainingrun.api import constants
from trainingrun.api.conditions import initial_conditions
from trainingrun.api.crd import custom_resource_definition, render, root_schema
from trainingrun.api.errors import InvalidManifest
from trainingrun.api.load import parse, resolve
from trainingrun.api.schema import NotStructural, structural

RULES = "x-kubernetes-validations"
PASSED_ON = "x-kubernetes-preserve-unknown-fields"  # to the pod, as it is
IMMUTABLE = {"task", "model", "data", "training", "resources", "parallelism", "output", "podTemplate"}
METADATA = "root.metadata"  # belongs to the API server, which allows nothing but its type

ALLOWED_KEYS = {
    "additionalProperties",
    "anyOf",  # only as a part of int-or-string
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "nullable",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    PASSED_ON,
    RULES,
}


def _nodes(node: dict[str, Any], path: str = "root") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from _nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from _nodes(node[key], f"{path}[]")


NODES = list(_nodes(root_schema()))


def _rules() -> list[tuple[str, dict[str, Any], dict[str, str]]]:
    return [(path, node, rule) for path, node in NODES for rule in node.get(RULES, [])]


def test_the_committed_file_is_what_the_models_give() -> None:
    committed = (ROOT / "crds" / "trainingruns.trainingrun.dev.yaml").read_text()
    assert committed == render(), "run make generate"


def test_it_is_small_enough_for_client_side_apply_which_keeps_a_copy_in_an_annotation() -> None:
    copy_of_it = json.dumps(yaml.safe_load(render()), separators=(",", ":"))
    assert len(copy_of_it) < 100_000  # all annotations of an object may have 262144 bytes


def test_it_is_the_same_every_time() -> None:
    assert render() == render()


@pytest.mark.parametrize("version", [constants.OLDEST_KUBERNETES, constants.NEWEST_KUBERNETES])
def test_kubernetes_knows_every_field_of_the_definition(version: str) -> None:
    kubernetes_validate.validate(yaml.safe_load(render()), version, strict=True)


@pytest.mark.parametrize(("path", "node"), NODES, ids=[path for path, _ in NODES])
def test_each_node_is_structural_described_and_bounded(path: str, node: dict[str, Any]) -> None:
    assert set(node) <= ALLOWED_KEYS
    assert "type" in node or node.get("x-kubernetes-int-or-string")
    assert not ("properties" in node and "additionalProperties" in node)
    assert node.get("default", 0) is not None
    if path != METADATA:
        assert node.get("description", "").endswith((".", "llama"))
    kind = node.get("type")
    if kind == "array":
        assert "maxItems" in node
        assert node["x-kubernetes-list-type"] in ("map", "atomic")
        keys = node.get("x-kubernetes-list-map-keys", [])
        assert set(keys) <= set(node["items"].get("required", []))
        assert (node["x-kubernetes-list-type"] == "map") == bool(keys)
    if kind == "string":
        assert "maxLength" in node or "enum" in node
    if kind in ("integer", "number"):
        assert {"minimum", "maximum"} <= set(node)
    if "additionalProperties" in node or PASSED_ON in node:
        assert "maxProperties" in node
    if PASSED_ON in node:
        assert path.startswith("root.spec.podTemplate.spec.")
        assert "properties" not in node
    assert set(node.get("required", [])) <= set(node.get("properties", {}))


def test_no_required_field_has_a_default() -> None:
    for path, node in NODES:
        for name in node.get("required", []):
            assert "default" not in node["properties"][name], f"{path}.{name}"


@pytest.mark.parametrize(
    ("path", "node", "rule"), _rules(), ids=[f"{p}: {r['rule'][:40]}" for p, _, r in _rules()]
)
def test_each_rule_reads_fields_that_exist_and_says_what_to_do(
    path: str, node: dict[str, Any], rule: dict[str, str]
) -> None:
    expressions = [rule["rule"], rule.get("messageExpression", "")]
    for expression in expressions:
        outside_quotes = re.sub(r"'[^']*'", "''", expression)
        assert outside_quotes.count("'") % 2 == 0
        for left, right in ("()", "[]", "{}"):
            assert outside_quotes.count(left) == outside_quotes.count(right)
        for fields in _fields_read(outside_quotes):
            _walk(node, fields)
    assert "; hint: " in rule["message"]
    assert "\n" not in rule["message"]
    template = rule.get("messageExpression", "")
    if template:
        text, _, values = template.partition("'.format([")
        assert len(re.findall("%[ds]", text)) == values.count(", ") + 1
        assert "string(" not in template  # its cost cannot be bounded: the API server refuses it


def test_a_default_is_checked_by_the_rules_of_its_block_before_its_fields_have_theirs() -> None:
    """So the API server refuses the definition when a rule reads a field of `default: {}` that it has not asked for."""
    for path, node, rule in _rules():
        read = re.findall(r"self\.(\w+)", rule["rule"])
        if read and isinstance(node.get("default"), dict) and read[0] not in node["default"]:
            assert f"has(self.{read[0]})" in rule["rule"], (path, rule["rule"])


def _fields_read(expression: str) -> Iterator[list[str]]:
    """The fields that `self.a.b` and `has(self.a.b)` name; a last word before `(` is a function."""
    for match in re.finditer(r"\b(?:self|oldSelf)((?:\.\w+)*)(\(?)", expression):
        fields = match[1].split(".")[1:]
        yield fields[:-1] if match[2] else fields


def _walk(node: dict[str, Any], fields: list[str]) -> None:
    for index, name in enumerate(fields):
        if node.get("type") == "object" and fields[index - 1 : index + 1] == ["metadata", "name"]:
            return  # the API server's own
        assert name in node["properties"], f"there is no {'.'.join(fields)}"
        node = node["properties"][name]


def test_what_a_run_is_cannot_be_changed_and_what_it_may_use_can() -> None:
    spec = root_schema()["properties"]["spec"]["properties"]
    fixed = {
        name
        for name, node in spec.items()
        if any(rule["rule"] == "self == oldSelf" for rule in node.get(RULES, []))
    }
    assert fixed == IMMUTABLE
    checkpoint = spec["checkpoint"]["properties"]
    assert any(rule["rule"] == "self == oldSelf" for rule in checkpoint["location"][RULES])
    assert set(spec) - fixed == {"scale", "recovery", "checkpoint"}


def test_rules_cover_what_the_models_check_across_fields() -> None:
    said = " ".join(rule["message"] for _, _, rule in _rules())
    for field in (
        "metadata.name",
        "spec.scale.minNodes",
        "spec.training.duration",
        "spec.training.globalBatch:",
        "spec.training.globalBatch.tokens",
        "spec.training.sequenceLength",
        "spec.model.tokenizer",
        "spec.model.config.vocab_size",
        "spec.model.config.hidden_size",
        "spec.model.config.num_key_value_heads",
        "spec.resources.perNode",
        "spec.resources.processesPerNode",
        "spec.checkpoint.adopt",
        "spec.checkpoint.durable",
        "spec.output.uri",
        "spec.podTemplate",
        "spec.podTemplate.metadata.labels",
        "spec.podTemplate.metadata.annotations",
        "spec.podTemplate.spec.containers[0].volumeMounts",
    ):
        assert field in said


def test_every_rule_has_a_manifest_that_breaks_it_and_that_the_models_refuse_too() -> None:
    """What the API server says to them is seen by the tests on a cluster."""
    rules = {(path, number) for path, node in NODES for number in range(len(node.get(RULES, [])))}
    tried = {case.rule for case in (*CREATES, *UPDATES, RESIZED)}
    assert tried | UNBREAKABLE == rules
    assert not tried & UNBREAKABLE
    for case in CREATES:
        with pytest.raises(InvalidManifest):
            parse(manifest(*case.changes), None)


def test_the_api_server_fills_in_the_same_defaults_as_we_do() -> None:
    served = manifest()
    _fill_in(served["spec"], root_schema()["properties"]["spec"])
    ours = resolve(parse(manifest(), BASE), BASE)
    assert resolve(parse(served, BASE), BASE) == ours
    for spec in (ours, served["spec"]):
        spec["resources"].pop("processesPerNode", None)  # depends on another field: no default in the schema
        spec["checkpoint"]["durable"].pop("intervalSeconds", None)
    assert served["spec"] == _without_nulls(ours)


def _fill_in(value: Any, node: dict[str, Any]) -> None:
    for name, inner in node.get("properties", {}).items():
        if isinstance(value, dict):
            if name not in value and "default" in inner:
                value[name] = copy.deepcopy(inner["default"])
            if name in value:
                _fill_in(value[name], inner)
    if isinstance(value, list) and "items" in node:
        for one in value:
            _fill_in(one, node["items"])


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def test_a_run_that_nobody_has_looked_at_does_not_pass_for_healthy() -> None:
    status = root_schema()["properties"]["status"]
    assert status["default"] == {}
    assert status["properties"]["conditions"]["default"] == initial_conditions(0, 0)


def test_names_columns_and_subresources() -> None:
    spec = custom_resource_definition()["spec"]
    assert spec["names"]["shortNames"] == ["trun"]
    assert spec["names"]["categories"] == ["training"]
    (version,) = spec["versions"]
    assert version["name"] == constants.VERSION
    assert version["subresources"]["status"] == {}
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.scale.maxNodes"
    shown = [column["name"] for column in version["additionalPrinterColumns"] if not column["priority"]]
    assert shown == ["Task", "State", "Nodes", "Step", "Epoch", "Age"]


def test_columns_and_replica_paths_point_at_fields() -> None:
    (version,) = custom_resource_definition()["spec"]["versions"]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += [path for name, path in version["subresources"]["scale"].items() if name.endswith("Path")]
    for path in paths:
        if not path.startswith(".metadata") and "[?(" not in path:
            _walk(root_schema(), path.split(".")[1:])


def test_a_model_that_has_no_structural_form_is_refused() -> None:
    class Exclusive(BaseModel):
        share: float = Field(gt=0, description="A share.")

    class Either(BaseModel):
        value: int | str = Field(description="One or the other.")

    with pytest.raises(NotStructural, match="exclusive bounds"):
        structural(Exclusive)
    with pytest.raises(NotStructural, match="union"):
        structural(Either)
