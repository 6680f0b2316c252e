"""The places that a manifest can name: files, folders of a volume claim, and the Python standard library's sources.

Pure: whether a file is there is checked in `load`, whether a claim is there by the controller. Used by the models
(the same rules once in Python and once in CEL), by `claims`, and by `load` to make paths absolute.
"""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass
from pathlib import Path

from trainingrun.api.base import refusal, shorten
from trainingrun.api.cel import rule
from trainingrun.api.errors import FieldError

FILE = "file://"
PVC = "pvc://"
S3 = "s3://"
STDLIB_URIS = ("python-stdlib:train", "python-stdlib:heldout")
URI_LIMIT = 1024
CLAIM_LIMIT = 253

_FILE = r"file://[^\x00-\x1f\x7f]+"
_CLAIM = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
# A segment begins with at most one dot, so that neither `.` nor `..` is one.
_SEGMENT = r"\.?[A-Za-z0-9_@+=,~-][A-Za-z0-9._@+=,~-]*"
_PVC = rf"pvc://{_CLAIM}(/{_SEGMENT})+/?"
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_S3 = rf"s3://{_BUCKET}(/{_SEGMENT})+/?"
# No user and password: they would be in the manifest, for all to read.
_HTTP = r"https?://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?(/[^/\x00-\x20\x7f]+)+/?"
_FOLDER = re.compile(rf"(?:{_SEGMENT}/)*{_SEGMENT}/?")

_LATER = ("hf", "s3", "gs", "az", "http", "https")
_PVC_FORM = "pvc://claim/path"
_S3_FORM = "s3://bucket/prefix"
_FIX_FOLDER = f"use file:///path or {_PVC_FORM}"
_FIX_LOCATION = f"use file:///path, {_PVC_FORM} or {_S3_FORM}"
_FIX_DATA = (
    f"use file:///path, {_PVC_FORM}, s3://bucket/path, https://host/path or {' or '.join(STDLIB_URIS)}"
)


@dataclass(frozen=True)
class ClaimPath:
    """`pvc://claim/path`: a folder or file inside of a volume claim that is beside the run."""

    name: str
    path: str  # relative to the root of the volume, without a slash at either end


def check_folder_uri(uri: str) -> str:
    """`file://…` or `pvc://claim/path`, or refused with what to write instead. For field validators."""
    if uri.startswith(FILE):
        return _checked_path(uri)
    if uri.startswith(PVC):
        return _checked_claim(uri)
    raise refusal(_refused(uri, f"a file:// URI or {_PVC_FORM}"))


def check_location_uri(uri: str) -> str:
    """A folder, or `s3://bucket/prefix`: where checkpoints can be kept."""
    return _checked_bucket(uri) if uri.startswith(S3) else check_folder_uri(uri)


def check_data_uri(uri: str) -> str:
    """`file://…`, `pvc://claim/path`, `s3://bucket/path`, `https://host/path`, or a part of the standard library."""
    if uri in STDLIB_URIS:
        return uri
    if uri.startswith(S3):
        return _checked_bucket(uri)
    if uri.startswith(("http://", "https://")):
        return _checked_web(uri)
    if uri.startswith(FILE):
        return _checked_path(uri)
    if uri.startswith(PVC):
        return _checked_claim(uri)
    if uri.startswith("python-stdlib"):
        names = " or ".join(STDLIB_URIS)
        raise refusal(
            FieldError("", uri, f"{shorten(uri)} is not a part of the standard library", f"use {names}")
        )
    places = f"a file:// URI, {_PVC_FORM}, s3://bucket/path, https://host/path, {' or '.join(STDLIB_URIS)}"
    raise refusal(_refused(uri, places))


def _uri_rule(pattern: str, fix: str) -> dict[str, str]:
    return rule(
        f"self.matches(r'^({pattern})$')",
        f"is not a place that this version can use; hint: {fix}",
        f"%s is not a place that this version can use; hint: {fix}",
        "self",
    )


_ABSOLUTE = rule(
    "!self.startsWith('file:') || self.startsWith('file:///')",
    "a file:// path must be absolute; hint: write file:/// and the path from the root",
    "%s is not an absolute path; hint: write file:/// and the path from the root",
    "self",
)
FOLDER_RULES = (_uri_rule(f"{_FILE}|{_PVC}", _FIX_FOLDER), _ABSOLUTE)
LOCATION_RULES = (_uri_rule(f"{_FILE}|{_PVC}|{_S3}", _FIX_LOCATION), _ABSOLUTE)
DATA_RULES = (_uri_rule(f"{_FILE}|{_PVC}|{_S3}|{_HTTP}|python-stdlib:(train|heldout)", _FIX_DATA), _ABSOLUTE)


def claim_of(uri: str) -> ClaimPath | None:
    """The parts of a `pvc://` URI that was checked; None for another kind of place."""
    if not uri.startswith(PVC):
        return None
    name, _, path = uri.removeprefix(PVC).partition("/")
    return ClaimPath(name, path.strip("/"))


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


def _checked_web(uri: str) -> str:
    if not re.fullmatch(_HTTP, uri):
        message = f"{shorten(uri)} is not the address of a file or folder that anyone may read"
        fix = "write https://host/path, without user, password or spaces"
        raise refusal(FieldError("", uri, message, fix))
    return uri


def _checked_claim(uri: str) -> str:
    name, _, path = uri.removeprefix(PVC).partition("/")
    if not re.fullmatch(_CLAIM, name) or len(name) > CLAIM_LIMIT:
        message = f"{shorten(uri)}: {shorten(name)} cannot be the name of a PersistentVolumeClaim"
        fix = f"write {_PVC_FORM}, with the claim's own name: lower-case letters, digits, '-' and '.'"
        raise refusal(FieldError("", uri, message, fix))
    if not path.strip("/"):
        message = f"{shorten(uri)} has no path"
        raise refusal(FieldError("", uri, message, f"name a folder of the volume: pvc://{name}/path"))
    if not _FOLDER.fullmatch(path):
        message = f"{shorten(uri)}: {shorten(path)} is not a path inside of the volume"
        fix = "write names of letters, digits and ._@+=,~- with one / between them, and none that is . or .."
        raise refusal(FieldError("", uri, message, fix))
    return uri


def _checked_bucket(uri: str) -> str:
    if not re.fullmatch(_S3, uri):
        message = f"{shorten(uri)} names no folder in a bucket"
        fix = f"write {_S3_FORM}: the bucket's name, and names of letters, digits and ._@+=,~- with one / between them"
        raise refusal(FieldError("", uri, message, fix))
    return uri


def _refused(uri: str, expected: str) -> FieldError:
    scheme = uri.partition("://")[0] if "://" in uri else uri.partition(":")[0] if ":" in uri else ""
    if scheme in _LATER:
        message = f"{shorten(uri)}: {scheme}:// is not supported by this version"
        return FieldError("", uri, message, f"use {expected}")
    fix = f"write file://{uri.removeprefix('file:')}" if scheme in ("", "file") and uri else f"use {expected}"
    return FieldError("", uri, f"{shorten(uri)} is not {expected}", fix)
