from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from tests.trainer.texts import END, a_spec, a_store, quiet
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from trainer.checkpoint import durable
from trainer.checkpoint.about import AboutModel
from trainer.checkpoint.manifest import read_manifest
from trainer.checkpoint.restore import CheckpointDamaged
from trainer.data.prepare import PreparedData, prepare
from trainer.evaluate import (
    TOKEN_LIMIT,
    WORK_LIMIT,
    bigram_cross_entropy,
    entropies,
    evaluate,
    main,
    mean_loss,
    pairs,
    spread,
)
from trainer.export import export

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

TEXT = "It was the best of times, it was the worst of times.\n"


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(TEXT * 20)
    spec = a_spec(folder.as_uri(), heldout=((folder / "b.txt").as_uri(),))
    spec["model"]["config"] |= {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    spec["training"]["sequenceLength"] = 16
    return spec


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def data(spec: dict[str, Any], cache: Path) -> PreparedData:
    return prepare(spec, cache, quiet)


def a_model(spec: dict[str, Any], rows: int, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(4)
    config = AutoConfig.for_model(**spec["model"]["config"], vocab_size=rows)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def saved(
    location: Path, model: PreTrainedModel, spec: dict[str, Any], data: PreparedData, step: int = 9
) -> str:
    weights = {f"model.{name}": parameter.detach() for name, parameter in model.named_parameters()}
    moments = {f"optim.{name}.exp_avg": torch.zeros_like(p) for name, p in model.named_parameters()}
    return durable.save(
        location,
        step=step,
        epoch=1,
        tensors=weights | moments,
        scalars={"tokens": 5},
        parent="",
        run_uid="u",
        keep_last=None,
        plan={},
        versions={},
        about=AboutModel(
            spec["model"]["config"] | {"vocab_size": data.vocabulary_size},
            str(model.dtype).removeprefix("torch."),
            data.train.end_token,
            data.tokenizer_dir,
            data.fingerprint,
        ),
    )


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision, dtype", [("FP32", torch.float32), ("FP64", torch.float64)])
def test_plain_transformers_loads_the_export_with_the_same_logits(
    spec: dict[str, Any], data: PreparedData, tmp_path: Path, tied: bool, precision: str, dtype: torch.dtype
) -> None:
    spec = json.loads(json.dumps(spec))
    spec["model"]["config"]["tie_word_embeddings"] = tied
    spec["training"]["precision"] = precision
    model = a_model(spec, data.vocabulary_size, dtype)
    name = saved(tmp_path / "c", model, spec, data)
    folder = tmp_path / "models" / "m"
    export(tmp_path / "c", name, folder)
    loaded = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    assert next(loaded.parameters()).dtype == dtype
    assert all(torch.equal(p, dict(loaded.named_parameters())[n]) for n, p in model.named_parameters())
    torch.testing.assert_close(
        loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-12 if precision == "FP64" else 1e-6
    )
    assert loaded.config.eos_token_id == data.train.end_token
    assert loaded.generate(ids, max_new_tokens=2, do_sample=False).shape[1] <= ids.shape[1] + 2


def test_an_export_says_where_it_came_from_and_is_made_once(
    spec: dict[str, Any], data: PreparedData, tmp_path: Path
) -> None:
    location, out = tmp_path / "c", tmp_path / "m"
    model = a_model(spec, data.vocabulary_size)
    first = saved(location, model, spec, data, step=9)
    export(location, first, out)
    made = (out / "model.safetensors").stat()
    export(location, first, out)
    assert (out / "model.safetensors").stat() == made
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata()["checkpoint"] == first
    (out / "model.safetensors").write_bytes(b"cut")
    export(location, first, out)
    assert (out / "model.safetensors").stat().st_size == made.st_size
    second = saved(location, model, spec, data, step=10)
    export(location, second, out)
    assert json.loads((out / "source.json").read_text())["step"] == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "m"]


def test_a_damaged_checkpoint_is_not_exported(
    spec: dict[str, Any], data: PreparedData, tmp_path: Path
) -> None:
    name = saved(tmp_path / "c", a_model(spec, data.vocabulary_size), spec, data)
    file = tmp_path / "c" / name / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    item = next(i for i in read_manifest(tmp_path / "c", name).items if i.name == "model.lm_head.weight")
    content[item.byte_offset + item.byte_length // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointDamaged):
        export(tmp_path / "c", name, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_evaluation_keeps_documents_apart(spec: dict[str, Any], tmp_path: Path) -> None:
    """The loss of packed documents is that of each alone."""
    model = a_model(spec, 300, torch.float64)
    lengths = [5, 9, 2, 6, 10]
    packed = a_store(tmp_path / "packed", lengths, vocabulary=300)
    loss, targets = mean_loss(model, packed, range(packed.sequences(64)), 64, quiet)
    alone = 0.0
    for start, end in zip(packed.starts, packed.starts[1:], strict=False):
        ids = torch.from_numpy(packed.read(int(start), int(end)))[None]
        logits = model(ids).logits[0, :-1]
        alone += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
    assert targets == sum(lengths) - len(lengths)
    assert loss * targets == pytest.approx(alone, abs=1e-9)


def test_entropies_are_those_of_counts() -> None:
    before = np.array([0, 0, 0, 0, 1, 1])
    after = np.array([1, 1, 2, 2, 0, 0])
    single, pair = entropies(before, after, 3)
    assert single == pytest.approx(math.log(3))
    assert pair == pytest.approx(4 / 6 * math.log(2))
    seen = bigram_cross_entropy((before.repeat(10_000), after.repeat(10_000)), (before, after), 3)
    assert seen == pytest.approx(pair, abs=1e-3)
    unseen = bigram_cross_entropy((before, after), (np.array([2]), np.array([0])), 3)
    assert unseen == pytest.approx(-math.log((2 + 1) / (6 + 3)))


def test_pairs_do_not_cross_documents(tmp_path: Path) -> None:
    store = a_store(tmp_path / "s", [3, 2])
    before, after = pairs(store, [(0, 100)])
    assert list(zip(before.tolist(), after.tolist(), strict=True)) == [(1, 2), (2, END), (3, END)]
    before, after = pairs(
        store, [(1, 2), (4, 5)]
    )  # the target of a stretch's last token is the token after it
    assert list(zip(before.tolist(), after.tolist(), strict=True)) == [(2, END)]


def test_rows_are_spread_evenly_and_the_same_each_time() -> None:
    assert list(spread(10, 4)) == [0, 2, 5, 7]
    assert list(spread(10, 10)) == list(spread(10, 99)) == list(range(10))
    assert spread(3_000_001, 2) == [0, 1_500_000]


def test_the_documented_bounds_are_those_that_hold() -> None:
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    assert f"at most {TOKEN_LIMIT:,} tokens" in text
    assert WORK_LIMIT == 2 * 10**12
    assert f"more than {WORK_LIMIT / TOKEN_LIMIT / 1e6:.1f} million parameters 2 × 10¹² divided" in text


def test_a_large_held_out_text_is_sampled_and_it_is_said_on_how_many_tokens(
    spec: dict[str, Any], data: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, said = a_model(spec, data.vocabulary_size), list[str]()
    export(tmp_path / "c", saved(tmp_path / "c", model, spec, data), tmp_path / "m")
    assert data.heldout is not None
    whole = evaluate(tmp_path / "m", spec, data, said.append)
    assert whole["measured_tokens"] == whole["heldout_tokens"] == data.heldout.tokens
    asked = evaluate(tmp_path / "m", spec, data, said.append, limit=70)
    assert (asked["measured_tokens"], asked["tokens"] < whole["tokens"]) == (64, True)
    # For the same machine, a model of 1,000 times the parameters gets a thousandth of the tokens.
    monkeypatch.setattr("trainer.evaluate.WORK_LIMIT", 33 * model.num_parameters())
    large = evaluate(tmp_path / "m", spec, data, said.append)
    assert large["measured_tokens"] == 32
    rows = spread(data.heldout.sequences(16), 2)
    assert large["heldout_loss"] == mean_loss(model, data.heldout, rows, 16, quiet)[0]
    assert f"measuring held-out loss on 32 of {data.heldout.tokens:,} tokens" in said


def test_the_command_prints_one_line_of_numbers(
    spec: dict[str, Any],
    data: PreparedData,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = a_model(spec, data.vocabulary_size)
    export(tmp_path / "c", saved(tmp_path / "c", model, spec, data), tmp_path / "m")
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    command = ["--model", f"file://{tmp_path}/m", "--spec", str(tmp_path / "spec.json")]
    assert main([*command, "--cache", str(cache)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert data.heldout is not None
    assert result["tokens"] == data.heldout.tokens - data.heldout.documents
    assert result["heldout_loss"] == pytest.approx(math.log(300), abs=0.5)
    assert 0 < result["bigram_entropy"] < result["unigram_entropy"] < math.log(300)
    assert result["bigram_entropy"] < result["bigram_cross_entropy"]
    assert main([*command, "--cache", str(tmp_path / "none")]) == 64
    assert "not prepared" in capsys.readouterr().err
    assert main(["--model", f"file://{tmp_path}/no", *command[2:], "--cache", str(cache)]) == 64
    assert "cannot be read" in capsys.readouterr().err
    assert main(["--model", "m", *command[2:], "--cache", str(cache)]) == 64
    assert "--model m: not a place that can be used here" in capsys.readouterr().err
