"""Where a URI of the specification is: the one place that knows what `file://`, `pvc://` and `s3://` mean.

`file:///path` is that path, letter by letter: nothing is decoded, as nothing is where the manifest is checked.
`pvc://claim/path` is a path in a volume that the pod has mounted under the folder of claims, which the environment
names; where there is no such folder (a local run), there are no claims. Called by everything that reads or writes at a
URI. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from trainingrun.protocol.names import ENV_CLAIMS_DIR

S3 = "s3://"
_FILE = "file://"
_CLAIM = "pvc://"


class NotAPath(ValueError):
    """The URI is no path on this machine. `problem` and `fix` are for the error that names its field."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}; {fix}")
        self.problem = problem
        self.fix = fix


def local_path(uri: str, environment: Mapping[str, str] = os.environ) -> Path:
    """The absolute path of a `file://` or `pvc://` URI; whether anything is there is not looked at. Raises NotAPath."""
    if uri.startswith(_CLAIM):
        return _in_claim(uri, environment.get(ENV_CLAIMS_DIR, ""))
    path = uri.removeprefix(_FILE)
    if path == uri or not path.startswith("/") or not path.strip("/"):
        raise NotAPath(
            "not a place that can be used here", "use file:///PATH, or pvc://CLAIM/PATH on a cluster"
        )
    return Path(path)


def bucket_of(uri: str) -> tuple[str, str]:
    """Bucket and prefix of an `s3://` URI. Raises NotAPath."""
    bucket, _, prefix = uri.removeprefix(S3).partition("/")
    prefix = prefix.rstrip("/")
    if not bucket or not prefix or prefix.startswith("/") or not uri.startswith(S3):
        raise NotAPath("names no folder in a bucket", "use s3://BUCKET/PREFIX")
    return bucket, prefix


def uri_of(path: Path, environment: Mapping[str, str] = os.environ) -> str:
    """The URI by which people outside of the pod know this absolute path."""
    claims = environment.get(ENV_CLAIMS_DIR, "")
    if claims and path.is_relative_to(claims) and path != Path(claims):
        return _CLAIM + path.relative_to(claims).as_posix()
    return f"{_FILE}{path}"


def _in_claim(uri: str, claims_dir: str) -> Path:
    claim, _, rest = uri.removeprefix(_CLAIM).partition("/")
    segments = PurePosixPath(rest).parts
    if not claim or not segments or rest.startswith("/"):
        raise NotAPath("names no path in a volume claim", "use pvc://CLAIM/PATH")
    if ".." in (claim, *segments) or claim == ".":
        raise NotAPath("leads out of the volume claim", "write the path without '..'")
    if not claims_dir:
        raise NotAPath(
            f"there are no volume claims here ({ENV_CLAIMS_DIR} is not set)",
            "use file:///PATH, or run it on a cluster",
        )
    return Path(claims_dir, claim, *segments)
