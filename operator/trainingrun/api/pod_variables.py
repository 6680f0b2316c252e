"""spec.podTemplate: environment variables of the container, and where their values come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import ConfigDict, Field, StrictBool, StringConstraints

from trainingrun.api.base import Block, shorten
from trainingrun.api.cel import rule, rules
from trainingrun.api.errors import FieldError
from trainingrun.api.worker_pod import RANK_VARIABLES, VARIABLE_PREFIX

ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=253)]


class FieldRef(Block):
    """A field of the pod."""

    field_path: str = Field(min_length=1, max_length=512, description="Such as status.hostIP.")


class KeyRef(Block):
    """A key of a Secret or ConfigMap in the run's namespace."""

    name: ObjectName = Field(description="Name of the object.")
    key: Key = Field(description="The key in it.")
    optional: StrictBool | None = Field(None, description="Whether it may be missing; omitted: false.")


class ValueFrom(Block):
    """Exactly one place that a value is taken from."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "[has(self.fieldRef), has(self.secretKeyRef), has(self.configMapKeyRef)]"
                ".filter(given, given).size() == 1",
                "needs exactly one of fieldRef, secretKeyRef and configMapKeyRef; "
                "hint: set one of them and remove the others",
            )
        )
    )
    field_ref: FieldRef | None = Field(None, description="A field of the pod.")
    secret_key_ref: KeyRef | None = Field(None, description="A key of a Secret.")
    config_map_key_ref: KeyRef | None = Field(None, description="A key of a ConfigMap.")

    def problems(self) -> Iterator[FieldError]:
        given = [self.field_ref, self.secret_key_ref, self.config_map_key_ref]
        count = sum(one is not None for one in given)
        if count != 1:
            message = f"names {count} places, exactly one is needed"
            yield FieldError("", None, message, "set one of fieldRef, secretKeyRef and configMapKeyRef")


_RANK_LIST = ", ".join(f"'{name}'" for name in RANK_VARIABLES)
_NAME_OF_OURS = f"names that begin with {VARIABLE_PREFIX} belong to the operator"
_SET_FOR_RANKS = "the agent sets it for each training process"


class Variable(Block):
    """An environment variable of the container."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                f"!self.name.startsWith('{VARIABLE_PREFIX}')",
                f"{_NAME_OF_OURS}; hint: rename the variable",
                f"%s: {_NAME_OF_OURS}; hint: rename the variable",
                "self.name",
            ),
            rule(
                f"!(self.name in [{_RANK_LIST}])",
                f"{_SET_FOR_RANKS}; hint: remove the variable",
                f"%s: {_SET_FOR_RANKS}; hint: remove it",
                "self.name",
            ),
            rule(
                "!(has(self.value) && has(self.valueFrom))",
                "takes at most one of value and valueFrom; hint: remove one of them",
                "%s: takes at most one of value and valueFrom; hint: remove one of them",
                "self.name",
            ),
        )
    )
    name: str = Field(
        min_length=1,
        max_length=253,
        description="Name of the variable.",
        json_schema_extra={"pattern": r"^[A-Za-z_][A-Za-z0-9_.-]*$"},
    )
    value: str | None = Field(None, max_length=32768, description="Its value; omitted: empty.")
    value_from: ValueFrom | None = Field(None, description="Where its value comes from, instead.")

    def problems(self) -> Iterator[FieldError]:
        if self.name.startswith(VARIABLE_PREFIX):
            yield FieldError("name", self.name, f"{self.name}: {_NAME_OF_OURS}", "rename the variable")
        if self.name in RANK_VARIABLES:
            yield FieldError("name", self.name, f"{self.name}: {_SET_FOR_RANKS}", "remove it")
        if not self.name.replace(".", "_").replace("-", "_").isidentifier() or not self.name.isascii():
            message = f"{shorten(self.name)} cannot be the name of a variable"
            yield FieldError("name", self.name, message, "use letters, digits and _, and no digit first")
        if self.value is not None and self.value_from is not None:
            message = f"{self.name}: both value and valueFrom are set"
            yield FieldError("", None, message, "remove one of them")


class OptionalObject(Block):
    """A whole Secret or ConfigMap in the run's namespace."""

    name: ObjectName = Field(description="Name of the object.")
    optional: StrictBool | None = Field(None, description="Whether it may be missing; omitted: false.")


class VariablesFrom(Block):
    """All keys of one Secret or ConfigMap as variables. Variables of the operator's own names stay as they are."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "has(self.secretRef) != has(self.configMapRef)",
                "needs exactly one of secretRef and configMapRef; hint: set one of them and remove the other",
            )
        )
    )
    prefix: str | None = Field(None, max_length=253, description="Put before each name.")
    secret_ref: OptionalObject | None = Field(None, description="The Secret.")
    config_map_ref: OptionalObject | None = Field(None, description="The ConfigMap.")

    def problems(self) -> Iterator[FieldError]:
        if (self.secret_ref is None) == (self.config_map_ref is None):
            which = "neither secretRef nor configMapRef" if self.secret_ref is None else "both of them"
            yield FieldError("", None, f"{which} is set", "set exactly one of secretRef and configMapRef")
