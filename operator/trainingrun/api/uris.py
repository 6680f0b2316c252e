"""The places that a manifest can name: files, and the sources of the Python standard library.

Pure: whether a file is there is checked in `load`. Used by the models, and by `load` to make paths absolute.
"""

from __future__ import annotations

import os.path
from pathlib import Path

from trainingrun.api.base import refusal, shorten
from trainingrun.api.errors import FieldError

FILE = "file://"
STDLIB_URIS = ("python-stdlib:train", "python-stdlib:heldout")
URI_LIMIT = 1024

FILE_PATTERN = r"^file://[^\x00-\x1f\x7f]+$"
DATA_PATTERN = r"^(file://[^\x00-\x1f\x7f]+|python-stdlib:(train|heldout))$"

_LATER = ("hf", "s3", "gs", "az", "pvc", "http", "https")


def check_file_uri(uri: str) -> str:
    """`file://…`, or refused with what to write instead. For field validators."""
    if uri.startswith(FILE):
        return _checked_path(uri)
    raise refusal(_refused(uri, "a file:// URI"))


def check_data_uri(uri: str) -> str:
    if uri in STDLIB_URIS:
        return uri
    if uri.startswith(FILE):
        return _checked_path(uri)
    if uri.startswith("python-stdlib"):
        names = " or ".join(STDLIB_URIS)
        raise refusal(
            FieldError("", uri, f"{shorten(uri)} is not a part of the standard library", f"use {names}")
        )
    raise refusal(_refused(uri, f"a file:// URI, {' or '.join(STDLIB_URIS)}"))


def file_path(uri: str) -> str | None:
    """The path of a file:// URI as written, or None for another kind of place."""
    return uri.removeprefix(FILE) if uri.startswith(FILE) else None


def absolute(uri: str, base_dir: Path | None) -> str:
    """The same place with an absolute, normalised path; other kinds of URIs as they are."""
    path = file_path(uri)
    if path is None:
        return uri
    return FILE + os.path.normpath(path if base_dir is None else base_dir / path)


def _checked_path(uri: str) -> str:
    path = uri.removeprefix(FILE)
    if not path.strip():
        raise refusal(FieldError("", uri, f"{shorten(uri)} has no path", "write file:// and then the path"))
    if path.startswith("~"):
        fix = "write the whole path, from /"
        raise refusal(FieldError("", uri, f"{shorten(uri)}: ~ is not expanded", fix))
    if any(ord(character) < 32 or ord(character) == 127 for character in path):
        message = f"{shorten(uri)} has a control character in its path"
        raise refusal(FieldError("", uri, message, "remove it"))
    return uri


def _refused(uri: str, expected: str) -> FieldError:
    scheme = uri.partition("://")[0] if "://" in uri else uri.partition(":")[0] if ":" in uri else ""
    if scheme in _LATER:
        message = f"{shorten(uri)}: {scheme}:// is not supported by this version"
        return FieldError("", uri, message, f"use {expected}")
    fix = f"write file://{uri.removeprefix('file:')}" if scheme in ("", "file") and uri else f"use {expected}"
    return FieldError("", uri, f"{shorten(uri)} is not {expected}", fix)
