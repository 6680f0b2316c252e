"""Turns what pydantic found into FieldErrors that say where, which value, and what to do.

Pure; called by `load.parse` only.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainingrun.api import unsupported
from trainingrun.api.base import PROBLEMS, counted, describe, shorten
from trainingrun.api.errors import FieldError

Loc = Sequence[str | int]

NEAR_VALUE = 0.7  # how alike a wrong value is to a right one that was meant: another model is not a slip
_EXPECTED = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "a smaller integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "less than the minimum", "at least"),
    "less_than_equal": ("le", "more than the maximum", "at most"),
}


def field_errors(error: ValidationError, root: type[BaseModel]) -> tuple[FieldError, ...]:
    """Everything that `root` refused, in the order of the manifest's fields."""
    details = error.errors(include_url=False)
    found = [problem for detail in details for problem in _translate(detail, root)]
    renamed = {rename for detail in details if (rename := _meant_path(detail, root))}
    return tuple(problem for problem in found if problem.path not in renamed)


def path_of(loc: Loc) -> str:
    """`("spec", "sources", 0, "uri")` as people write it: `spec.sources[0].uri`."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif any(character in part for character in "./[] "):
            path += f'["{part}"]'
        else:
            path += f".{part}" if path else part
    return path


def _translate(detail: ErrorDetails, root: type[BaseModel]) -> Iterator[FieldError]:
    loc, kind, value = detail["loc"], detail["type"], detail["input"]
    context = detail.get("ctx", {})
    path = path_of(loc)
    if kind == PROBLEMS:
        for problem in context[PROBLEMS]:
            yield problem.within(path)
    elif kind == "extra_forbidden":
        yield _unknown_field(path, str(loc[-1]), value, fields_at(root, loc[:-1]))
    elif kind == "missing":
        yield _missing_field(path, str(loc[-1]), fields_at(root, loc[:-1]))
    elif kind == "literal_error":
        yield _other_value(path, value, _choices(root, loc))
    elif kind in _BOUNDS:
        bound, text, hint = _BOUNDS[kind]
        limit = _plain(context[bound])
        yield FieldError(path, value, f"{_plain(value)} is {text}, {limit}", f"use {hint} {limit}")
    elif kind in ("too_short", "too_long"):
        yield _length(path, value, context, "item" if isinstance(value, list) else "key")
    elif kind in ("string_too_short", "string_too_long"):
        yield _length(path, value, context, "character")
    elif kind == "string_pattern_mismatch":
        message = (
            f"{shorten(value)} may have lower-case letters, digits and '-' only, and '-' not at its ends"
        )
        yield FieldError(path, value, message, "rename it")
    elif kind == "multiple_of":
        message = f"{value} is not a multiple of {context['multiple_of']}"
        yield FieldError(path, value, message, f"use a multiple of {context['multiple_of']}")
    elif kind in _EXPECTED:
        in_quantities = kind == "string_type" and loc[-2:-1] == ("perNode",)
        yield _wrong_type(path, value, "a quantity such as 4Gi or 2" if in_quantities else _EXPECTED[kind])
    else:
        yield FieldError(path, value, f"{describe(value)}: {detail['msg']}", "correct it")


def _meant_path(detail: ErrorDetails, root: type[BaseModel]) -> str | None:
    """The field that an unknown one was meant to be: that it is missing is no error of its own."""
    loc = detail["loc"]
    if detail["type"] != "extra_forbidden" or unsupported.field_fix(path_of(loc)) is not None:
        return None
    meant = _meant(str(loc[-1]), fields_at(root, loc[:-1]))
    return path_of((*loc[:-1], meant)) if meant else None


def _unknown_field(path: str, name: str, value: Any, fields: dict[str, Any]) -> FieldError:
    fix = unsupported.field_fix(path)
    if fix is not None:
        return FieldError(path, value, "not supported by this version", fix)
    meant = _meant(name, fields)
    if meant:
        return FieldError(path, value, f"unknown field; did you mean {meant}?", f"rename {name} to {meant}")
    known_names = ", ".join(fields)
    return FieldError(path, value, "unknown field", f"remove it; the fields here are: {known_names}")


def _meant(word: str, known: Iterable[str], nearness: float = 0.6) -> str | None:
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=nearness)
    return by_lower[close[0]] if close else None


def _missing_field(path: str, name: str, fields: dict[str, Any]) -> FieldError:
    description = fields[name].description if name in fields else None
    return FieldError(path, None, "required, but not there", f"add {name}{_what(description)}")


def _other_value(path: str, value: Any, choices: list[str]) -> FieldError:
    allowed = " or ".join(choices)
    if unsupported.is_later_value(path, value):
        return FieldError(path, value, f"{value} is not supported by this version", f"use {allowed}")
    if not isinstance(value, str):
        return _wrong_type(path, value, f"a string ({allowed})")
    problem = unsupported.problem_of(path, value)
    if problem is not None:
        return FieldError(path, value, f"{value} is {problem}", f"use {allowed}")
    meant = _meant(value, choices, NEAR_VALUE)
    fix = f"did you mean {meant}?" if meant and len(choices) > 1 else f"use {allowed}"
    return FieldError(path, value, f"expected {allowed}, got {describe(value)}", fix)


def _wrong_type(path: str, value: Any, expected: str) -> FieldError:
    quoted = f"put it in quotes: '{value}'"
    is_scalar = isinstance(value, int | float) and not isinstance(value, bool)
    fix = quoted if expected == "a string" and is_scalar else f"write {expected}"
    if value is None:
        fix = f"write {expected}, or remove the field if it may be omitted"
    return FieldError(path, value, f"expected {expected}, got {describe(value)}", fix)


def _length(path: str, value: Any, context: dict[str, Any], unit: str) -> FieldError:
    actual = len(value)
    if "max_length" in context:
        limit = context["max_length"]
        text, hint = (
            f"at most {limit} allowed",
            f"shorten it to {limit}" if unit == "character" else f"remove {actual - limit}",
        )
    else:
        limit = context["min_length"]
        text, hint = (
            f"at least {limit} needed",
            "write something" if unit == "character" else f"add {limit - actual}",
        )
    shown = shorten(value) if isinstance(value, str) else describe(value)
    count = f" has {counted(actual, unit)}" if isinstance(value, str) else ""
    return FieldError(path, value, f"{shown}{count}, {text}", hint)


def fields_at(root: type[BaseModel], loc: Loc) -> dict[str, Any]:
    """The fields of the block at `loc`, by the name that users write; empty when it is no block of ours."""
    block = _annotation(root, loc)
    model = _model_in(block)
    if model is None:
        return {}
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _choices(root: type[BaseModel], loc: Loc) -> list[str]:
    return [choice for choice in _inside(_annotation(root, loc)) if isinstance(choice, str)]


def _annotation(root: type[BaseModel], loc: Loc) -> Any:
    annotation: Any = root
    for part in loc:
        if isinstance(part, int):
            continue  # a list's model is found through its annotation
        model = _model_in(annotation)
        if model is None:
            return None
        field = next((f for name, f in model.model_fields.items() if part in (f.alias, name)), None)
        annotation = None if field is None else field.annotation
    return annotation


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in _inside(annotation):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _inside(annotation: Any) -> Iterator[Any]:
    """The annotation and all that it is made of: `list[X] | None` has `X` in it."""
    yield annotation
    for part in get_args(annotation):
        yield from _inside(part)


def _plain(number: Any) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


def _what(description: str | None) -> str:
    """The first sentence of a field's description, in parentheses."""
    sentence = (description or "").partition(". ")[0].rstrip(".")
    return f" ({sentence[:1].lower()}{sentence[1:]})" if sentence else ""
