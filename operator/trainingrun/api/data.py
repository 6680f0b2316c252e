"""spec.data: what the run reads, in which order, and what it is measured on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainingrun.api import uris
from trainingrun.api.base import DNS_LABEL_PATTERN, Block
from trainingrun.api.cel import rules


class DataSource(Block):
    """One body of text."""

    name: str = Field(
        min_length=1,
        max_length=63,
        pattern=DNS_LABEL_PATTERN,
        description="Name of the source, in metrics and reports.",
    )
    uri: Annotated[str, AfterValidator(uris.check_data_uri)] = Field(
        min_length=1,
        max_length=uris.URI_LIMIT,
        description="Where it is: file:// and the path of a text file or of a folder of text files, "
        "pvc://claim/path for one on a PersistentVolumeClaim beside the run, or python-stdlib:train or "
        "python-stdlib:heldout, disjoint parts of the source and documentation of the Python standard "
        "library that runs the trainer.",
        json_schema_extra=rules(*uris.DATA_RULES),
    )
    format: Literal["Text"] = Field(
        description="How it is read. Text: documents of plain text, tokenised once and cached by content."
    )


class Data(Block):
    """The data. Every sample is read exactly once an epoch of the data, whatever happens to the nodes."""

    seed: int = Field(0, ge=0, le=2**31 - 1, description="Seed of the order of the samples.")
    sources: list[DataSource] = Field(
        min_length=1,
        max_length=1,
        description="What is trained on: exactly one source.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    validation: list[DataSource] = Field(
        default=[],
        max_length=1,
        description="What the loss is measured on at the end, never trained on: at most one source.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    packing: Literal["Concatenate"] = Field(
        "Concatenate",
        description="How documents become sequences. Concatenate: one after the other with a separator "
        "token, cut at sequenceLength; nothing is dropped but the last, incomplete sequence.",
    )
