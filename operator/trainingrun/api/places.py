"""Whether the places that a run writes to and those that it reads lie within each other.

An export replaces its whole folder, so nothing else of the run may lie in it, nor it in anything else; and what a run
saves must not become a part of what it reads. Pure; called by the models.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainingrun.api.errors import FieldError

if TYPE_CHECKING:
    from trainingrun.api.models import TrainingRunSpec

_OUTPUT, _LOCATION = "output.uri", "checkpoint.location.uri"


def place_problems(spec: TrainingRunSpec) -> Iterator[FieldError]:
    """With paths below `spec`."""
    output, location = spec.output.uri, spec.checkpoint.location.uri
    read = dict(_read_places(spec))
    for path, uri in {_LOCATION: location, **read}.items():
        if _within(output, uri) or _within(uri, output):
            yield _nested(_OUTPUT, output, path, uri, "give the model another folder")
    for path, uri in read.items():
        if _within(location, uri):
            yield _nested(_LOCATION, location, path, uri, "give the checkpoints another folder")


def _read_places(spec: TrainingRunSpec) -> Iterator[tuple[str, str]]:
    for index, source in enumerate(spec.data.sources):
        yield f"data.sources[{index}].uri", source.uri
    for index, held_out in enumerate(spec.data.validation):
        yield f"data.validation[{index}].uri", held_out.uri
    if spec.model.source is not None:
        yield "model.source.uri", spec.model.source.uri
    if spec.model.tokenizer is not None and spec.model.tokenizer.uri:
        yield "model.tokenizer.uri", spec.model.tokenizer.uri


def _within(inner: str, outer: str) -> bool:
    """Whether `inner` is `outer`, or lies below it."""
    scheme, _, path = inner.partition("://")
    other, _, root = outer.partition("://")
    if not path or scheme != other:
        return False
    path, root = posixpath.normpath(path), posixpath.normpath(root)
    return path == root or path.startswith(root.rstrip("/") + "/")


def _nested(path: str, uri: str, other_path: str, other: str, fix: str) -> FieldError:
    if _within(uri, other) and _within(other, uri):
        how = "is the same as"
    else:
        how = "lies within" if _within(uri, other) else "is around"
    where = "" if how == "is the same as" else f" ({other})"
    return FieldError(path, uri, f"{uri} {how} spec.{other_path}{where}", fix)
