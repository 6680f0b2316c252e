"""spec.data: what the run reads, in which order and mixture, and what it is measured on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from trainingrun.api import uris
from trainingrun.api.base import DNS_LABEL_PATTERN, Block, shorten
from trainingrun.api.cel import rule, rules
from trainingrun.api.errors import FieldError

SOURCES_LIMIT = 64
STAGES_LIMIT = 16
WEIGHT_LIMIT = 10**6


def _name(description: str) -> str:
    name: str = Field(min_length=1, max_length=63, pattern=DNS_LABEL_PATTERN, description=description)
    return name


class ValidationSource(Block):
    """One body of text."""

    name: str = _name("Name of the source, in metrics and reports.")
    uri: Annotated[str, AfterValidator(uris.check_data_uri)] = Field(
        min_length=1,
        max_length=uris.URI_LIMIT,
        description="Where it is: file:// and the path of a file or folder, pvc://claim/path for one on a "
        "PersistentVolumeClaim beside the run, s3://bucket/path or https://host/path for one that the pods may read, "
        "or python-stdlib:train or python-stdlib:heldout, disjoint parts of the source and documentation of the "
        "Python standard library that runs the trainer.",
        json_schema_extra=rules(*uris.DATA_RULES),
    )
    format: Literal["Text", "Tokens"] = Field(
        description="How it is read. Text: documents (.txt, .md, .py, .jsonl, .parquet, .arrow), tokenised once and "
        "cached by content. Tokens: a token store that python -m trainer.data.write made, read where it is."
    )


class DataSource(ValidationSource):
    """One body of text, and its share of what is trained on."""

    weight: int | None = Field(
        None,
        ge=0,
        le=WEIGHT_LIMIT,
        description="Share of the TOKENS that are read, against the other weights; needed when there are several "
        "sources. 0: read in those stages only that give it a weight. A source that is used up begins again.",
    )


class SourceWeight(Block):
    """The weight of one source in a stage."""

    name: str = _name("Name of the source.")
    weight: int = Field(
        ge=0, le=WEIGHT_LIMIT, description="Share of the tokens, against the stage's other weights."
    )


class DataStage(Block):
    """Another mixture, from a point of the run on."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.weights.exists(w, w.weight > 0)",
                "spec.data.stages: a stage without a weight above 0 reads nothing; hint: raise one of its weights",
            )
        )
    )
    after_tokens: int = Field(
        ge=1,
        le=10**15,
        description="Where it begins: after this many tokens of the run, counted as its duration is (sequences x "
        "sequenceLength), rounded up to whole sequences.",
    )
    weights: list[SourceWeight] = Field(
        min_length=1,
        max_length=SOURCES_LIMIT,
        description="The whole mixture of the stage: a source that is not named is not read in it.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )

    def problems(self) -> Iterator[FieldError]:
        yield from _twice("weights", [entry.name for entry in self.weights])
        if not any(entry.weight for entry in self.weights):
            yield FieldError(
                "weights", None, "no source has a weight above 0, so nothing is read", "raise a weight"
            )


class Data(Block):
    """The data. Every sample is read exactly once an epoch of its source, whatever happens to the nodes."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "self.sources.size() == 1 || self.sources.all(s, has(s.weight))",
                "spec.data.sources: with several sources each needs a weight; hint: set its share of the tokens",
            ),
            rule(
                "self.sources.exists(s, !has(s.weight) || s.weight > 0)",
                "spec.data.sources: no source has a weight above 0; hint: raise the weight of one",
            ),
            rule(
                "self.stages.map(s, s.afterTokens).isSorted()",
                "spec.data.stages: are not in the order of afterTokens; hint: put them in ascending order",
            ),
            rule(
                "self.stages.all(s, s.weights.all(w, self.sources.exists(o, o.name == w.name)))",
                "spec.data.stages: a weight names no source; hint: use the names of spec.data.sources",
            ),
        )
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Seed of the order of the samples.")
    sources: list[DataSource] = Field(
        min_length=1,
        max_length=SOURCES_LIMIT,
        description="What is trained on.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    stages: list[DataStage] = Field(
        default=[],
        max_length=STAGES_LIMIT,
        description="Later mixtures of the sources, in order; before the first, the weights of the sources hold. With "
        "it, a run can end on its best data.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["afterTokens"]},
    )
    validation: list[ValidationSource] = Field(
        default=[],
        max_length=1,
        description="What the loss is measured on at the end, never trained on: at most one source.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    packing: Literal["Concatenate", "BestFit", "None"] = Field(
        "Concatenate",
        description="How documents become sequences; no token is left out, and no document attends to another. "
        "Concatenate: one after the other, cut at sequenceLength. BestFit: whole documents put together so that "
        "little is padded; only one that is longer than a sequence is cut. None: one document a sequence, padded.",
    )

    def problems(self) -> Iterator[FieldError]:
        names = [source.name for source in self.sources]
        yield from _twice("sources", names)
        if len(self.sources) > 1:
            for index, source in enumerate(self.sources):
                if source.weight is None:
                    message = f"required, as there are {len(self.sources)} sources"
                    yield FieldError(f"sources[{index}].weight", None, message, "set its share of the tokens")
        if all(source.weight == 0 for source in self.sources):
            yield FieldError(
                "sources", None, "no source has a weight above 0, so nothing is read", "raise a weight"
            )
        for index, stage in enumerate(self.stages):
            path = f"stages[{index}]"
            before = self.stages[index - 1].after_tokens if index else 0
            if stage.after_tokens <= before:
                message = f"{stage.after_tokens} is not more than that of the stage before, {before}"
                yield FieldError(
                    f"{path}.afterTokens", stage.after_tokens, message, "put the stages in order"
                )
            for number, entry in enumerate(stage.weights):
                if entry.name not in names:
                    message = f"{shorten(entry.name)} is the name of no source"
                    fix = f"use one of: {', '.join(names)}"
                    yield FieldError(f"{path}.weights[{number}].name", entry.name, message, fix)


def _twice(field: str, names: list[str]) -> Iterator[FieldError]:
    for index, name in enumerate(names):
        if name in names[:index]:
            message = f"{shorten(name)} is there already, as {field}[{names.index(name)}]"
            yield FieldError(f"{field}[{index}].name", name, message, "rename or remove one of the two")
