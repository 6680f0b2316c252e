"""Whether weights are of the model that spec.model.config describes, by their config.json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trainingrun.api.language_model import TransformersConfig
from trainingrun.api.load import check_source_config
from trainingrun.cli.main import app
from trainingrun.protocol.families import FAMILIES
from trainingrun.protocol.source_config import keys_of, misfits

EXAMPLE = Path(__file__).resolve().parents[1] / "golden" / "run.yaml"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "vocab_size": 512,
    "rope_theta": 5000.0,
}
FILE = {key: value for key, value in CONFIG.items() if key != "rope_theta"} | {
    "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


def found(given: dict[str, Any], content: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(one.key, one.given, one.theirs) for one in misfits(given, content)]


def test_the_keys_of_all_families_are_those_of_the_api() -> None:
    assert set().union(*(keys_of(kind) for kind in FAMILIES)) == set(TransformersConfig.model_fields)


@pytest.mark.parametrize("spelling", [{"rope_theta": 5000}, {"rope_parameters": {"rope_theta": 5000}}])
def test_the_same_model_in_another_spelling_is_the_same(spelling: dict[str, Any]) -> None:
    content = {key: value for key, value in FILE.items() if key != "rope_parameters"}
    assert found(CONFIG, {**content, **spelling}) == []


@pytest.mark.parametrize(
    ("key", "given", "file", "theirs"),
    [
        ("rope_theta", 9000.0, {}, 5000.0),
        ("rope_theta", None, {"rope_parameters": {"rope_theta": 500000.0}}, 500000.0),
        ("rms_norm_eps", None, {"rms_norm_eps": 1e-5}, 1e-5),
        ("tie_word_embeddings", None, {"tie_word_embeddings": True}, True),
        ("head_dim", None, {"head_dim": 128}, 128),
        ("num_key_value_heads", 2, {"num_key_value_heads": 4}, 4),
        ("hidden_size", 32, {}, 64),
    ],
)
def test_a_key_with_another_value_is_named_as_the_user_wrote_it(
    key: str, given: Any, file: dict[str, Any], theirs: Any
) -> None:
    assert (key, given, theirs) in found({**CONFIG, key: given}, {**FILE, **file})


def test_what_is_the_runs_own_business_or_not_said_is_no_misfit() -> None:
    assert found({**CONFIG, "attention_dropout": 0.1, "num_key_value_heads": 2}, FILE) == []
    assert found(CONFIG, {**FILE, "max_position_embeddings": 4096, "initializer_range": 0.5}) == []


def test_another_family_is_all_that_is_told() -> None:
    assert found(CONFIG, {**FILE, "model_type": "qwen2", "hidden_size": 1}) == [
        ("model_type", "llama", "qwen2")
    ]


def test_gpt2_has_names_of_its_own_in_its_files() -> None:
    given = {**CONFIG, "model_type": "gpt2", "hidden_size": 64, "intermediate_size": 256}
    del given["rope_theta"]
    content = {"model_type": "gpt2", "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 1024}
    assert found(given, content) == [("num_hidden_layers", 2, 3)]
    assert found({**given, "intermediate_size": 128}, {**content, "n_layer": 2}) == [
        ("intermediate_size", 128, 256)
    ]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(FILE))
    return folder


def test_a_local_run_from_other_weights_is_refused_before_anything_starts(weights: Path) -> None:
    manifest = yaml.safe_load(EXAMPLE.read_text())
    other = {**CONFIG, "rope_theta": 9000.0, "num_hidden_layers": 4}
    manifest["spec"]["model"] = {"init": "Weights", "source": {"uri": f"file://{weights}"}, "config": other}
    Path("run.yaml").write_text(yaml.safe_dump(manifest))
    result = CliRunner().invoke(app, ["local", "run", "run.yaml", "--trainer-python", "/bin/true"])
    assert result.exit_code == 2, result.output
    assert (
        f"spec.model.config.rope_theta: 9000.0, but the model there was made with 5000.0 (file://{weights})\n"
        "  hint: set rope_theta: 5000.0, or name another model"
    ) in result.stderr
    assert "spec.model.config.num_hidden_layers: 4, but the model there was made with 2" in result.stderr
    assert not Path(".trainingrun").exists()


def test_what_cannot_be_read_is_left_to_the_trainer(weights: Path) -> None:
    def look(uri: str) -> None:
        check_source_config({"model": {"source": {"uri": uri}, "config": {**CONFIG, "hidden_size": 32}}})

    look("pvc://models/llama")
    (weights / "config.json").write_text("{")
    look(f"file://{weights}")
    (weights / "config.json").write_text("[]")
    look(f"file://{weights}")
    (weights / "config.json").unlink()
    look(f"file://{weights}")
    check_source_config({"model": {"source": None, "config": CONFIG}})
