"""Bad input, as a user meets it: one message with field, value and fix, the documented exit code, nothing left.

What can be seen in the manifest and on this machine is refused before anything starts. What only a pod can see
fails the run within seconds, and no pod is started twice for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.command import Ended, left_behind, trainingrun, write_manifest
from tests.scenarios.manifests import small_manifest

from trainingrun.api.errors import CliExit
from trainingrun.cluster.local.store import Store

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(120)]

PLAN = ("plan", "-f", "run.yaml")
RUN = ("local", "run", "run.yaml")
A_FEW_SECONDS = 30.0  # of a machine that does other things as well


@dataclass(frozen=True)
class Case:
    """A manifest with `changes`, by their path (list positions are numbers), and what must be said of it."""

    changes: Mapping[str, Any]
    says: tuple[str, ...]
    code: CliExit = CliExit.BAD_INPUT
    commands: tuple[tuple[str, ...], ...] = (PLAN, RUN)


REFUSED = {
    "an unknown field": Case(
        {"spec.training.learningRate": 1e-3},
        ("spec.training.learningRate: unknown field", "hint: remove it; the fields here are: duration, "),
    ),
    "a field with a slip of the pen": Case(
        {"spec.scale.minNode": 1},
        ("spec.scale.minNode: unknown field; did you mean minNodes?", "hint: rename minNode to minNodes"),
    ),
    "a wrong type": Case(
        {"spec.scale.minNodes": "two"},
        ("spec.scale.minNodes: expected an integer, got the string 'two'", "hint: write an integer"),
    ),
    "a name that is too long": Case(
        {"metadata.name": "a" * 41},
        (f"metadata.name: '{'a' * 41}' has 41 characters, at most 40 are allowed", "hint: shorten it"),
    ),
    "minNodes > maxNodes": Case(
        {"spec.scale": {"minNodes": 3, "maxNodes": 2}},
        ("spec.scale.minNodes: 3 is more than spec.scale.maxNodes (2)", "hint: lower minNodes to 2 or raise"),
    ),
    "tensor that does not divide the heads": Case(
        {"spec.parallelism": {"axes": {"tensor": 3}}},
        (
            "spec.parallelism.axes.tensor: tensor 3 does not divide 4 attention heads (4 / 3 = 1.33)",
            "nearest that fits: 2",
            "hint: set tensor to one of: 1, 2",
        ),
    ),
    "a batch that is no multiple of the sequence length": Case(
        {"spec.training.globalBatch": {"tokens": 1000}},
        (
            "spec.training.globalBatch.tokens: 1000 is not a multiple of spec.training.sequenceLength (32): "
            "1000 = 31 x 32 + 8",
            "hint: use 992 (31 sequences) or 1024 (32 sequences)",
        ),
    ),
    "a model that fits nowhere": Case(
        {
            "spec.model.config.hidden_size": 16384,
            "spec.model.config.intermediate_size": 65536,
            "spec.model.config.num_hidden_layers": 64,
        },
        ("no plan fits: a process needs at least", "weights", "but has", "nearest that fits: ", "hint: use "),
        CliExit.NOTHING_FITS,
    ),
    "a field of a later version": Case(
        {"spec.sft": {"loss": "AssistantOnly"}},
        ("spec.sft: not supported by this version", "hint: remove it; tasks other than pretrain are planned"),
    ),
    "a value of a later version": Case(
        {"spec.training.precision": "FP8"},
        ("spec.training.precision: FP8 is not supported by this version", "hint: use BF16 or FP32 or "),
    ),
    "the checkpoints of another run": Case(
        {"spec.checkpoint.adopt": True},
        ("spec.checkpoint.adopt: true is not supported by this version", "hint: remove it, and use another "),
    ),
    "a vocabulary smaller than its bytes": Case(
        {"spec.model.tokenizer": {"train": {"vocabularySize": 100}}},
        (
            "spec.model.tokenizer.train.vocabularySize: 100 is less than the minimum, 260",
            "hint: use at least 260",
        ),
    ),
    "a data source that is not there": Case(
        {"spec.data.sources.0.uri": "file:///nowhere/text"},
        (
            "spec.data.sources[0].uri: file:///nowhere/text: there is no such file or folder",
            "hint: check the path",
        ),
        CliExit.MISSING,
        (RUN,),
    ),
    "a tokenizer that is not there": Case(
        {"spec.model.tokenizer": {"uri": "file:///nowhere/tokenizer"}, "spec.model.config.vocab_size": 384},
        (
            "spec.model.tokenizer.uri: file:///nowhere/tokenizer: there is no such file",
            "hint: check the path",
        ),
        CliExit.MISSING,
        (RUN,),
    ),
    "an accelerator that is absent": Case(
        {"spec.resources": {"perNode": {"cpu": "1", "memory": "4Gi", "amd.com/gpu": "16"}}},
        ("spec.resources.perNode: amd.com/gpu 16 on each of 2 nodes, but this machine has", "hint: "),
        commands=(RUN,),
    ),
    "a checkpoint location below a file": Case(
        {"spec.checkpoint.location.uri": "file://run.yaml/checkpoints"},
        (
            "spec.checkpoint.location.uri: ",
            "run.yaml is a file, not a folder",
            "hint: choose a folder that can",
        ),
        commands=(RUN,),
    ),
    "a model folder below a file": Case(
        {"spec.output.uri": "file://run.yaml/model"},
        ("spec.output.uri: ", "run.yaml is a file, not a folder", "hint: choose a folder that can"),
        commands=(RUN,),
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_is_refused_with_one_message_before_anything_starts(case: Case, tmp_path: Path) -> None:
    write_manifest(tmp_path, changed(small_manifest(tmp_path), case.changes))
    before = everything_in(tmp_path)
    for command in case.commands:
        ended = trainingrun(tmp_path, *command)
        assert ended.code == case.code, ended.err
        check_message(ended, case.says)
        assert everything_in(tmp_path) == before


def test_a_manifest_that_is_not_there_is_named(tmp_path: Path) -> None:
    for command in (PLAN, RUN):
        ended = trainingrun(tmp_path, *command)
        assert ended.code == CliExit.MISSING, ended.err
        check_message(
            ended, ("run.yaml: there is no such file", f"hint: check the path; it is relative to {tmp_path}")
        )
    assert everything_in(tmp_path) == {}


def check_message(ended: Ended, says: tuple[str, ...]) -> None:
    """Nothing on stdout, and on stderr one error without a traceback, which says all of this."""
    assert ended.out == ""
    assert ended.err.startswith("error: ")
    assert (ended.err.count("error: "), ended.err.count("hint: ")) == (1, 1), ended.err
    assert "Traceback" not in ended.err
    for said in says:
        assert said in ended.err


def changed(manifest: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with each value set at its path: `spec.data.sources.0.uri`."""
    built: dict[str, Any] = copy.deepcopy(dict(manifest))
    for path, value in changes.items():
        *parents, last = path.split(".")
        holder: Any = built
        for key in parents:
            holder = holder[int(key)] if isinstance(holder, list) else holder.setdefault(key, {})
        holder[last] = value
    return built


def everything_in(folder: Path) -> dict[str, bytes]:
    """Content of every file by its path; folders have none."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*")}
    return {name: path.read_bytes() if path.is_file() else b"" for name, path in found.items()}


# what only a pod can see


def empty_folder(folder: Path) -> str:
    (folder / "data").mkdir()
    return f"file://{folder}/data"


def a_bad_line(folder: Path) -> str:
    (folder / "data.jsonl").write_text('{"text": "the first line is right"}\n{"txt": "this is not"}\n')
    return f"file://{folder}/data.jsonl"


def not_utf8(folder: Path) -> str:
    (folder / "data.txt").write_bytes(b"caf\xe9")
    return f"file://{folder}/data.txt"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (empty_folder, ("data': no document in it", "Fix: name a file or folder that holds text")),
        (a_bad_line, ('data.jsonl, line 2: no string under "text"', "Fix: write one JSON object a line")),
        (not_utf8, ("data.txt, byte 3: not UTF-8", "Fix: convert the file to UTF-8")),
    ],
)
def test_data_that_cannot_be_used_fails_the_run_at_once_and_for_good(
    make: Callable[[Path], str], says: tuple[str, ...], tmp_path: Path
) -> None:
    data = make(tmp_path)
    write_manifest(tmp_path, changed(small_manifest(tmp_path), {"spec.data.sources.0.uri": data}))
    ended = trainingrun(tmp_path, *RUN)
    fails_for_good(tmp_path, ended, (f"spec.data.sources[0].uri: '{data}'", *says))


def test_a_run_on_the_checkpoint_location_of_another_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    """The first run has claimed the location, although it found nothing to train on."""
    text, nothing = f"file://{tmp_path}/text", empty_folder(tmp_path)
    first = small_manifest(tmp_path, "first")
    location = first["spec"]["checkpoint"]["location"]["uri"]
    write_manifest(tmp_path, changed(first, {"spec.data.sources.0.uri": nothing}))
    assert trainingrun(tmp_path, *RUN).code == CliExit.RUN_FAILED
    before = everything_in(tmp_path)
    assert f"{location.removeprefix(f'file://{tmp_path}/')}/owner.json" in before

    second = small_manifest(tmp_path, "second")
    write_manifest(
        tmp_path,
        changed(second, {"spec.data.sources.0.uri": text, "spec.checkpoint.location.uri": location}),
    )
    ended = trainingrun(tmp_path, *RUN)
    assert ended.code == CliExit.BAD_INPUT
    check_message(
        ended, (f"spec.checkpoint.location.uri: {location} holds the checkpoints of run first", "hint: ")
    )
    assert everything_in(tmp_path) | {"run.yaml": b""} == before | {"run.yaml": b""}


def fails_for_good(folder: Path, ended: Ended, says: tuple[str, ...]) -> None:
    """The run is Failed with BadConfiguration, soon, and by the first try of a pod."""
    assert ended.code == CliExit.RUN_FAILED, ended.err
    assert "Traceback" not in ended.err + ended.out
    for said in ("BadConfiguration", *says):
        assert said in ended.out
        assert said in ended.err  # the line of the event, as it happened
    store = Store(folder / ".trainingrun")
    run = store.run("scenario")
    assert run is not None
    [failed] = [event for event in store.events("scenario") if event.reason == "Failed"]
    assert failed.at - run.created_at < A_FEW_SECONDS
    assert store.epochs("scenario", run.uid) == []
    pods = {path.name for path in (folder / ".trainingrun/runs/scenario/logs").iterdir()}
    assert pods <= {"scenario-0-0", "scenario-1-0"}, "a pod was replaced"
    assert "Restarted" not in ended.err, "a container was started again"
    assert left_behind(folder) == []
