"""Pydantic's JSON schema as a structural schema, the form that Kubernetes accepts in a CRD.

References are written out, `X | None` becomes `nullable`, a single value becomes an enum of one, titles, null
defaults and `additionalProperties: false` go away (the API server handles unknown fields itself). Pure.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED = ("title", "$defs", "prefixItems", "discriminator")


class NotStructural(TypeError):
    """A model uses what a structural schema cannot say. A fault in the model, never in user input."""


def structural(model: type[BaseModel]) -> Schema:
    """The structural schema of a model, by the names that users write. Raises NotStructural."""
    generated = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(generated, generated.get("$defs", {}), model.__name__)


def _convert(node: Schema, definitions: dict[str, Schema], path: str) -> Schema:
    node = _without_references(node, definitions)
    if "exclusiveMinimum" in node or "exclusiveMaximum" in node:
        raise NotStructural(f"{path}: exclusive bounds cannot be said in a CRD; use ge and le")
    result = {key: value for key, value in node.items() if key not in _DROPPED}
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "default" in result and result["default"] is None:
        del result["default"]
    if result.get("x-kubernetes-preserve-unknown-fields"):
        result.pop("additionalProperties", None)  # says the same
    if "properties" in result:
        result.pop("additionalProperties", None)
        result["properties"] = {
            name: _convert(value, definitions, f"{path}.{name}")
            for name, value in result["properties"].items()
        }
    if isinstance(result.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(result["additionalProperties"], definitions, f"{path}[]")
    if "items" in result:
        result["items"] = _convert(result["items"], definitions, f"{path}[]")
    if result.get("type") == "integer":
        result["format"] = "int64"
    if "type" not in result and not result.get("x-kubernetes-int-or-string"):
        raise NotStructural(f"{path}: has no type")
    return _ordered(result)


def _without_references(node: Schema, definitions: dict[str, Schema]) -> Schema:
    """`$ref` and `anyOf: [X, null]` written out; what stands beside them wins over what they point at."""
    if node.get("x-kubernetes-int-or-string"):
        return node
    while "$ref" in node or "anyOf" in node:
        beside = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
        if "$ref" in node:
            inner = definitions[node["$ref"].rpartition("/")[2]]
        else:
            options = [option for option in node["anyOf"] if option != {"type": "null"}]
            if len(options) != 1 or len(options) == len(node["anyOf"]):
                raise NotStructural(f"a union of {node['anyOf']} has no structural form")
            inner = options[0]
            beside["nullable"] = True
        rules = [*inner.get(_RULES, []), *beside.get(_RULES, [])]
        node = {**inner, **beside, **({_RULES: rules} if rules else {})}
    return node


_RULES = "x-kubernetes-validations"
_FIRST = ("description", "type", "format", "nullable", "default", "enum")
_LAST = ("required", "properties", "additionalProperties", "items", _RULES)


def _ordered(node: Schema) -> Schema:
    """Keys in the order in which people read them: what it is, its bounds, what is inside."""
    middle = sorted(key for key in node if key not in _FIRST + _LAST)
    return {key: node[key] for key in (*_FIRST, *middle, *_LAST) if key in node}
