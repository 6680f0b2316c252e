"""Validation rules for the API server, written beside the same rules in Python.

A rule is a CEL expression with what to say when it is false. There are no admission webhooks: what cannot be
said in CEL is checked by the controller and shown as InvalidSpec. Used by the models; copied into the CRD.
"""

from __future__ import annotations

from typing import Any


def rule(expression: str, message: str, shown: str = "", *values: str) -> dict[str, str]:
    """`message` is what is said when `shown` cannot be: a %-template and CEL expressions for its values.

    Templates rather than `+` and `string()`: the API server cannot bound the cost of those and refuses them.
    """
    built = {"rule": expression, "message": message}
    if shown:
        built["messageExpression"] = f"'{shown}'.format([{', '.join(values)}])"
    return built


def rules(*all_rules: dict[str, str]) -> dict[str, Any]:
    """For `json_schema_extra` of a block or field."""
    return {"x-kubernetes-validations": list(all_rules)}


def never_changes(path: str) -> dict[str, str]:
    """The field is part of what the run is: checkpoints of one value do not continue under another."""
    return rule(
        "self == oldSelf",
        f"{path}: cannot be changed once the run exists; hint: delete the run, or create one with another "
        f"name and "
        "another checkpoint location",
    )


def exactly_one(path: str, first: str, second: str) -> dict[str, str]:
    return rule(
        f"has(self.{first}) != has(self.{second})",
        f"{path}: needs exactly one of {first} and {second}; hint: set one of them and remove the other",
    )


def at_most_one(path: str, first: str, second: str) -> dict[str, str]:
    return rule(
        f"!(has(self.{first}) && has(self.{second}))",
        f"{path}: takes at most one of {first} and {second}; hint: remove one of them",
    )
