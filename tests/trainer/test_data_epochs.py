"""Real ranks on a mixture: through a change of size, and beside a run that was not interrupted."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.scenarios import check_reads
from tests.trainer.epochs import GLOBAL_BATCH, Folder, a_spec

from trainer.config import read_config
from trainer.data import write
from trainer.data.batches import read_log, sample_hash
from trainer.data.prepare import prepared, samples_of
from trainingrun.protocol.records import Restore, RestoreSource

STEPS = 12
PAUSE = 5


def a_mixture_spec(folder: Path, packing: str) -> dict[str, Any]:
    """A text, and two token stores of another kind; the last stage reads one of them only."""
    spec = a_spec(folder, steps=STEPS)
    text = Path(spec["data"]["sources"][0]["uri"].removeprefix("file://"))
    stores = []
    for name, length in (("short", 4), ("long", 150)):
        file = folder / f"{name}.jsonl"
        texts = [" ".join(f"w{(n * 3 + i) % 50}" for i in range(length)) for n in range(300 // length)]
        file.write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
        tokenizer = ["--tokenizer", str(stores[0] / "tokenizer")] if stores else ["--train-tokenizer", "280"]
        assert write.main([str(file), "--output", str(folder / name), *tokenizer]) == 0
        stores.append(folder / name)
    spec["model"]["tokenizer"] = {"uri": (stores[0] / "tokenizer").as_uri(), "train": None}
    spec["data"] |= {
        "packing": packing,
        "sources": [
            {"name": "text", "uri": text.as_uri(), "format": "Text", "weight": 2},
            {"name": "short", "uri": stores[0].as_uri(), "format": "Tokens", "weight": 1},
            {"name": "long", "uri": stores[1].as_uri(), "format": "Tokens", "weight": 1},
        ],
        "stages": [
            {"afterTokens": 9 * GLOBAL_BATCH * 32 - 40, "weights": [{"name": "long", "weight": 1}]},
        ],
    }
    return spec


def reads(folder: Path, surviving: dict[int, int]) -> dict[int, tuple[int, int, str]]:
    """position -> (source, id, hash), of the steps that count."""
    found: dict[int, tuple[int, int, str]] = {}
    for path in folder.rglob("reads-*.jsonl"):
        for line in read_log(path):
            if surviving.get(line["step"]) == line["epoch"]:
                for at, *read in zip(
                    line["positions"], line["sources"], line["ids"], line["hash"], strict=True
                ):
                    position = (line["step"] - 1) * GLOBAL_BATCH + at
                    assert position not in found
                    found[position] = (read[0], read[1], read[2])
    return found


@pytest.mark.parametrize("packing", ["BestFit", "None"])
def test_a_mixture_goes_on_through_a_change_of_size_as_if_there_had_been_none(
    packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Folder(tmp_path / "whole", a_mixture_spec(tmp_path / "whole", packing))
    ended = whole.run(1)
    assert not ended.errors, ended.errors
    assert ended.results[0].outcome == "Done"

    changed = Folder(tmp_path / "changed", a_mixture_spec(tmp_path / "changed", packing))
    first = changed.run(1, replicate=2, pause_after=PAUSE)
    assert [(result.outcome, result.step) for result in first.results] == [("Paused", PAUSE)], first.errors
    memory = Restore(RestoreSource.MEMORY, step=PAUSE, epoch=1, layout=(1, 1, 1), holders=(0,))
    second = changed.run(2, shard=3, restore=memory, restore_files=changed.held(1, PAUSE, nodes=1))
    assert second.results[0].outcome == "Done", second.errors

    lineage = {step: 1 if step <= PAUSE else 2 for step in range(1, STEPS + 1)}
    read = reads(tmp_path / "changed", lineage)
    assert sorted(read) == list(range(STEPS * GLOBAL_BATCH))
    assert read == reads(tmp_path / "whole", dict.fromkeys(lineage, 1))
    _as_the_definition_says(read, changed.spec, tmp_path / "changed" / "cache")
    _as_the_scenarios_check_it(tmp_path / "changed", changed.spec, lineage, monkeypatch, capsys)
    one, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "changed"))
    assert all((one[name] - other[name]).abs().max() < 1e-6 for name in one)


def _as_the_definition_says(read: dict[int, tuple[int, int, str]], spec: dict[str, Any], cache: Path) -> None:
    config = read_config(spec)
    samples = samples_of(prepared(spec, cache), config.data, config.training.sequence_length, cache)
    expected = samples.at(0, len(read))
    assert [(source, number) for source, number, _ in map(read.get, range(len(read)))] == [
        (sample.source, sample.id) for sample in expected
    ]
    assert [digest for _, _, digest in map(read.get, range(len(read)))] == [
        sample_hash(samples.logged(sample)) for sample in expected
    ]
    annealing = -(-(9 * GLOBAL_BATCH * 32 - 40) // 32)
    assert {sample.source for sample in expected[annealing:]} == {2}
    assert {sample.source for sample in expected[:annealing]} == {0, 1, 2}
    assert max(Counter(expected).values()) > 1  # the small sources begin again


def _as_the_scenarios_check_it(
    folder: Path, spec: dict[str, Any], lineage: dict[int, int], monkeypatch: Any, capsys: Any
) -> None:
    """Their check passes, and fails once a single read is another one."""
    logs = sorted(folder.rglob("reads-*.jsonl"))
    question = {
        "spec": spec,
        "cache": str(folder / "cache"),
        "surviving": lineage,
        "reads": list(map(str, logs)),
    }
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(question)))
    assert check_reads.main() == 0
    lines = logs[-1].read_text().splitlines()
    line = json.loads(lines[-1])
    line["ids"][0] += 1
    logs[-1].write_text("\n".join([*lines[:-1], json.dumps(line)]) + "\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(question)))
    assert check_reads.main() == 1
    assert "the definition says" in capsys.readouterr().out


def test_metrics_and_summary_say_how_long_steps_waited_for_data(tmp_path: Path) -> None:
    run = Folder(tmp_path, a_spec(tmp_path, steps=3))
    ended = run.run(1)
    (log,) = tmp_path.rglob("metrics-e0001.jsonl")
    steps = [line for line in map(json.loads, log.read_text().splitlines()) if "loss" in line]
    assert len(steps) == 3
    assert all(0 <= line["dataWaitSeconds"] <= line["seconds"] for line in steps)
    waits = sorted(line["dataWaitSeconds"] for line in steps)
    assert ended.results[0].progress.summary.data_wait_seconds == pytest.approx(waits[1], abs=1e-6)
