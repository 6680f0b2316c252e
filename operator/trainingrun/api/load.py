"""From a file to a checked TrainingRun, and from that to the resolved spec that a revision freezes.

`read_manifest`, `require_files` and `check_source_config` touch the disk; the rest is pure. Called by the CLI for a
file and by the controller for an object (which has no folder: relative paths are refused then).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trainingrun.api import uris
from trainingrun.api.base import describe
from trainingrun.api.constants import API_VERSION, KIND
from trainingrun.api.durability import DURABLE_SECONDS
from trainingrun.api.errors import FieldError, InvalidManifest, Missing, UnreadableManifest
from trainingrun.api.models import TrainingRun
from trainingrun.api.translate import field_errors, path_of
from trainingrun.protocol.source_config import CONFIG_FILE, misfits

MANIFEST_BYTES = 2**20
"""Largest manifest that is read; the API server takes no more either."""

DEEPEST = 32
"""Deepest nesting of a manifest; the API has less than ten levels."""


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a key that is given twice is an error, not the last one's silent victory."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key must be a plain word", problem_mark=key.start_mark)
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_manifest(path: Path | str) -> dict[str, Any]:
    """The one YAML mapping in the file. Raises Missing or UnreadableManifest."""
    path = Path(path)
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise Missing(
            f"{path}: there is no such file\n  hint: check the path; it is relative to {Path.cwd()}"
        ) from None
    except IsADirectoryError:
        raise UnreadableManifest(f"{path}: is a folder\n  hint: name the file in it") from None
    except OSError as error:
        raise UnreadableManifest(
            f"{path}: cannot be read: {error.strerror}\n  hint: check the path"
        ) from None
    if len(raw) > MANIFEST_BYTES:
        raise UnreadableManifest(
            f"{path}: has {len(raw)} bytes, at most {MANIFEST_BYTES} are read\n  hint: is this a manifest?"
        )
    try:
        documents = [one for one in yaml.load_all(raw.decode(), Loader=_Loader) if one is not None]
    except UnicodeDecodeError as error:
        raise UnreadableManifest(
            f"{path}: is not UTF-8 text (byte {error.start})\n  hint: save it as UTF-8"
        ) from None
    except yaml.YAMLError as error:
        raise UnreadableManifest(f"{path}{_yaml_problem(error)}") from None
    except ValueError as error:
        raise UnreadableManifest(f"{path}: is not YAML: {error}\n  hint: correct the value") from None
    if len(documents) != 1:
        text = "is empty" if not documents else f"has {len(documents)} documents, one is expected"
        hint = "write a TrainingRun into it" if not documents else "put each run into a file of its own"
        raise UnreadableManifest(f"{path}: {text}\n  hint: {hint}")
    if not isinstance(documents[0], dict):
        found = describe(documents[0])
        raise UnreadableManifest(
            f"{path}: expected a mapping, got {found}\n  hint: begin with apiVersion: {API_VERSION}"
        )
    return documents[0]


def parse(manifest: Mapping[str, Any], base_dir: Path | None, source: str = "") -> TrainingRun:
    """The checked run. Raises InvalidManifest with everything that is wrong; `source` names the file in it.

    `base_dir` is the folder that relative file:// paths start from; without one they are refused.
    """
    odd = tuple(_odd_keys(manifest, (), 0))
    if odd:
        raise InvalidManifest(odd, source)
    wrong_kind = tuple(_wrong_kind(manifest))
    if wrong_kind:
        raise InvalidManifest(wrong_kind, source)
    try:
        run = TrainingRun.model_validate(dict(manifest))
    except ValidationError as error:
        raise InvalidManifest(field_errors(error, TrainingRun), source) from None
    if base_dir is None:
        relative = tuple(_relative_paths(run))
        if relative:
            raise InvalidManifest(relative, source)
    return run


def resolve(run: TrainingRun, base_dir: Path | None) -> dict[str, Any]:
    """The spec in API form with every default filled in and every path absolute: JSON data.

    The same input gives the same answer. Fields that stay null are measured or planned later. `podTemplate` is
    there only when the manifest has one, with the fields that it names.
    """
    spec: dict[str, Any] = run.spec.model_dump(mode="json", by_alias=True, exclude={"pod_template"})
    if run.spec.pod_template is not None:
        spec["podTemplate"] = run.spec.pod_template.model_dump(mode="json", by_alias=True, exclude_none=True)
    spec["model"]["config"] = run.spec.model.config.model_dump(mode="json", by_alias=True, exclude_none=True)
    if spec["model"]["tokenizer"] is None:
        spec["model"]["tokenizer"] = {"uri": spec["model"]["source"]["uri"], "train": None}
    spec["resources"]["processesPerNode"] = run.spec.resources.processes
    durable = spec["checkpoint"]["durable"]
    if durable["intervalSeconds"] is None and durable["intervalSteps"] is None:
        durable["intervalSeconds"] = DURABLE_SECONDS
    for _, holder in _places(spec):
        if holder["uri"] is not None:
            holder["uri"] = uris.absolute(holder["uri"], base_dir)
    return spec


def require_files(spec: Mapping[str, Any]) -> None:
    """Raises Missing unless every file that the resolved spec reads is there (on this machine)."""
    written = ("spec.checkpoint.location.uri", "spec.output.uri")
    errors = [
        FieldError(path, holder["uri"], f"{holder['uri']}: there is no such file or folder", "check the path")
        for path, holder in _places(spec)
        if path not in written and _is_missing(holder["uri"])
    ]
    if errors:
        raise Missing("\n".join(str(error) for error in errors))


def check_source_config(spec: Mapping[str, Any]) -> None:
    """Raises InvalidManifest when the weights of spec.model.source, where they are on this machine, are of another
    model than spec.model.config. What cannot be read is left to the trainer.
    """
    source = spec["model"].get("source")
    folder = uris.file_path(source["uri"]) if source else None
    try:
        content = json.loads((Path(folder) / CONFIG_FILE).read_text()) if folder else None
    except (OSError, ValueError):
        return
    found = misfits(spec["model"]["config"], content) if isinstance(content, dict) else ()
    errors = [
        FieldError(
            f"spec.model.config.{one.key}",
            one.given,
            f"{'left out' if one.given is None else one.given}, but {one.problem} ({source['uri']})",
            one.fix,
        )
        for one in found
    ]
    if errors:
        raise InvalidManifest(tuple(errors))


def _is_missing(uri: str | None) -> bool:
    path = uris.file_path(uri) if uri else None
    return path is not None and not Path(path).exists()


def _places(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path of the field, the mapping that holds it as `uri`) for each place that a resolved spec names."""
    for block in ("source", "tokenizer"):
        if spec["model"].get(block) is not None:
            yield f"spec.model.{block}.uri", spec["model"][block]
    for kind in ("sources", "validation"):
        for index, source in enumerate(spec["data"][kind]):
            yield f"spec.data.{kind}[{index}].uri", source
    yield "spec.checkpoint.location.uri", spec["checkpoint"]["location"]
    yield "spec.output.uri", spec["output"]


def _relative_paths(run: TrainingRun) -> Iterator[FieldError]:
    for path, holder in _places(run.spec.model_dump(mode="json", by_alias=True)):
        uri = holder["uri"]
        written = uris.file_path(uri) if uri else None
        if written is not None and not written.startswith("/"):
            yield FieldError(
                path,
                uri,
                f"{uri} is a relative path, and there is no folder that it could start from",
                "write file:/// and the path from the root",
            )


def _wrong_kind(manifest: Mapping[str, Any]) -> Iterator[FieldError]:
    """Something that is no TrainingRun at all gets this answer only, not one for each of its fields."""
    for key, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        value = manifest.get(key)
        if value is None:
            yield FieldError(key, None, "required, but not there", f"add {key}: {expected}")
        elif value != expected:
            yield FieldError(
                key, value, f"expected {expected}, got {describe(value)}", f"write {key}: {expected}"
            )


def _odd_keys(value: Any, loc: tuple[str | int, ...], depth: int) -> Iterator[FieldError]:
    """Keys that are no text (`1: x`, `yes: x`), and nesting without end (YAML anchors can make a loop)."""
    if depth > DEEPEST:
        yield FieldError(
            path_of(loc[:6]), None, f"is nested more than {DEEPEST} levels deep", "remove the nesting"
        )
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if isinstance(key, str):
                yield from _odd_keys(inner, (*loc, key), depth + 1)
            else:
                message = f"{describe(key)} is used as the name of a field"
                yield FieldError(path_of(loc), key, message, f"put it in quotes: '{key}'")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _odd_keys(inner, (*loc, index), depth + 1)


def _yaml_problem(error: yaml.YAMLError) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return f": is not YAML: {error}\n  hint: correct it"
    mark = error.problem_mark or error.context_mark
    where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
    what = ", ".join(part for part in (error.context, error.problem) if part)
    hint = (
        "remove one of them"
        if "given twice" in what
        else "correct the line; indent with spaces, quote text with ': '"
    )
    return f"{where}: is not YAML: {what}\n  hint: {hint}"
