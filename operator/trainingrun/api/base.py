"""What every block of the API has in common: camelCase names, no unknown fields, numbers as people write.

A block checks what lies inside itself in `problems()`, all of it at once; `translate` turns what pydantic
reports into FieldErrors. Nothing here knows any field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from trainingrun.api.errors import FieldError

PROBLEMS = "problems"  # type of the pydantic errors that carry FieldErrors

DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

_NUMBER = re.compile(r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$")


def refusal(*problems: FieldError) -> PydanticCustomError:
    """How a validator refuses a value with messages of our own; paths are relative to the value."""
    return PydanticCustomError(PROBLEMS, "refused", {PROBLEMS: problems})


class Block(BaseModel):
    """A block of the spec."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    def problems(self) -> Iterator[FieldError]:
        """What is wrong inside this block although each field by itself is right."""
        return iter(())

    @field_validator("*", mode="before")
    @classmethod
    def _as_declared(cls, value: Any, info: ValidationInfo) -> Any:
        """Numbers written as text become numbers (`3e-4` unquoted is text to PyYAML); booleans never do."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        kinds = {annotation, *get_args(annotation)}
        if not kinds & {int, float}:
            return value
        if isinstance(value, list):
            return [_number(element, kinds, f"[{index}]") for index, element in enumerate(value)]
        return _number(value, kinds)

    @model_validator(mode="after")
    def _all_right(self) -> Block:
        problems = tuple(self.problems())
        if problems:
            raise refusal(*problems)
        return self


def _number(value: Any, kinds: set[Any], place: str = "") -> Any:
    expected = "an integer" if int in kinds else "a number"
    if isinstance(value, bool):
        raise refusal(_wrong_type(place, value, expected))
    if not isinstance(value, str):
        return value
    if not _NUMBER.match(value.strip()):
        raise refusal(_wrong_type(place, value, expected))
    number = float(value)
    return int(number) if int in kinds and number.is_integer() else number


def _wrong_type(place: str, value: Any, expected: str) -> FieldError:
    return FieldError(place, value, f"expected {expected}, got {describe(value)}", f"write {expected}")


def describe(value: Any) -> str:
    """A value and its YAML type, short enough for a message: `the string 'two'`, `a list of 3`."""
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int():
            return f"the integer {value}"
        case float():
            return f"the number {value}"
        case str():
            return f"the string {shorten(value)}"
        case dict():
            return f"a mapping with {counted(len(value), 'key')}"
        case list() | tuple():
            return f"a list with {counted(len(value), 'item')}"
        case _:
            return f"the {type(value).__name__} {value}"


def shorten(text: str, limit: int = 60) -> str:
    return repr(text if len(text) <= limit else f"{text[: limit - 1]}…")


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
