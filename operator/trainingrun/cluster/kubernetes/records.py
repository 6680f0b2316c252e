"""Records as ControllerRevisions, there and back. Pure; used by the adapter of the controller and of membership.

`data` is the record's wire form, whole; name, labels and `revision` only make it possible to find it. It is held as
text: when anybody changes a label, the API server writes JSON anew, in other words for the same number, and then
refuses the change, because data never changes. A text that is long (a plan for thousands of sizes) is compressed.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from trainingrun.api.constants import Label
from trainingrun.cluster.kubernetes.objects import (
    Object,
    RunRef,
    label,
    name_of,
    owner_reference,
    owner_uid,
    run_labels,
)
from trainingrun.protocol import wire
from trainingrun.protocol.records import Epoch, Revision

R = TypeVar("R", Revision, Epoch)

TEXT, COMPRESSED = "record", "recordGzip"  # the one key of `data`
LONG_BYTES = 64 * 1024


def number(record: Revision | Epoch) -> int:
    return record.epoch if isinstance(record, Epoch) else record.revision


def to_object(record: Revision | Epoch, run: RunRef) -> dict[str, Any]:
    labels = run_labels(run) | {Label.RECORD.value: type(record).__name__}
    if isinstance(record, Epoch):
        labels |= {Label.EPOCH.value: str(record.epoch), Label.REVISION.value: record.revision}
    else:
        labels |= {Label.REVISION.value: record.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": record.name,
            "namespace": run.namespace,
            "labels": labels,
            "ownerReferences": [owner_reference(run)],
        },
        "revision": number(record),
        "data": to_data(record),
    }


def is_epoch(item: Object) -> bool:
    """By its label; whether it can be read is another question."""
    return label(item, Label.RECORD.value) == Epoch.__name__


def to_data(record: Revision | Epoch) -> dict[str, str]:
    """JSON as text, or as base64 of its gzip."""
    text = json.dumps(wire.to_json(record), separators=(",", ":"))
    if len(text) < LONG_BYTES:
        return {TEXT: text}
    return {COMPRESSED: base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()}


def _content(data: object) -> object:
    """The record's JSON. Raises wire.WireError."""
    if not isinstance(data, Mapping) or len(data) != 1:
        raise wire.WireError(f"neither {TEXT} nor {COMPRESSED} alone")
    try:
        if TEXT in data:
            return json.loads(str(data[TEXT]))
        return json.loads(gzip.decompress(base64.b64decode(str(data.get(COMPRESSED, "")), validate=True)))
    except (ValueError, OSError, EOFError, zlib.error, binascii.Error) as error:
        raise wire.WireError(f"cannot be read: {error}") from None


def from_object(kind: type[R], item: Object, run_uid: str) -> R | None:
    """The record; None for one of another owner. Raises wire.WireError, naming the object, for a damaged one."""
    if owner_uid(item) != run_uid:
        return None
    try:
        record = wire.from_json(kind, _content(item.get("data")))
    except wire.WireError as error:
        raise wire.WireError(f"ControllerRevision {name_of(item)}: data: {error}") from None
    # Made by hand, or a copy: whoever it is of, it is none of this run's.
    return record if record.name == name_of(item) and record.run_uid == run_uid else None


def sort(records: Sequence[R]) -> list[R]:
    return sorted(records, key=number)
