"""Weights from a folder of Hugging Face safetensors: what was saved is what trains; misfits are named."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.trainer.epochs import Folder, a_spec
from tests.trainer.worlds import run_world
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from trainer import preparing
from trainer.architecture import model_config, transformers_values
from trainer.checkpoint.manifest import newest, read_manifest
from trainer.checkpoint.restore import from_durable
from trainer.errors import ConfigError
from trainer.families import stored_shape
from trainer.weights import check_source
from trainer.weights_folder import WeightsFolder
from trainingrun.protocol.records import Restore, RestoreSource

ROWS = 300
BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "vocab_size": ROWS,
}
ROTARY = {**BASE, "num_key_value_heads": 2, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**ROTARY, "rope_theta": 5000.0},
    "qwen2": {key: value for key, value in ROTARY.items() if key != "head_dim"},
    "qwen3": ROTARY,
    "mistral": {**ROTARY, "sliding_window": 8},
    "gemma": ROTARY,
    "gpt2": BASE,
    "llama, tied": {**ROTARY, "tie_word_embeddings": True},
}


def config_of(family: str) -> dict[str, Any]:
    return {"model_type": family.partition(",")[0], **FAMILIES[family]}


def a_model(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(12)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**{"bos_token_id": None, "eos_token_id": None, **transformers_values(config)}),
        dtype=dtype,
    )
    with torch.no_grad():
        for parameter in model.parameters():  # nothing is 0 or 1, so that every mistake shows
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def put(model: PreTrainedModel, folder: Path, **options: Any) -> WeightsFolder:
    model.save_pretrained(folder, **options)
    return WeightsFolder(folder, folder.as_uri())


def a_run(folder: Path, config: dict[str, Any], source: Path, **training: Any) -> Folder:
    spec = a_spec(folder, steps=2, precision="FP32")
    spec["model"] |= {"init": "Weights", "source": {"uri": source.as_uri()}, "config": config}
    spec["model"]["tokenizer"] = {"uri": None, "train": {"vocabularySize": ROWS}}
    spec["training"] |= training
    spec["checkpoint"]["memory"] = {"intervalSteps": 0}
    return Folder(folder, spec)


# A learning rate of 0 keeps the weights as they were read: what is saved is what was imported.
STILL = {
    "optimizer": {
        "name": "AdamW",
        "learningRate": 0.0,
        "betas": [0.9, 0.95],
        "epsilon": 1e-8,
        "weightDecay": 0.0,
        "maxGradNorm": 1.0,
    }
}


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("llama", {}),
        ("llama", {"tensor": 2}),
        ("llama", {"shard": 2}),
        ("llama", {"pipeline": 2}),
        ("llama, tied", {"tensor": 2}),
        ("qwen2", {"tensor": 2}),
        ("qwen3", {"tensor": 2}),
        ("mistral", {"shard": 2}),
        ("gemma", {"tensor": 2}),
        ("gpt2", {"tensor": 2}),
    ],
)
def test_what_is_imported_is_what_is_exported_at_any_layout(
    tmp_path: Path, family: str, layout: dict[str, int]
) -> None:
    config = config_of(family)
    model = a_model(config)
    model.save_pretrained(tmp_path / "source", max_shard_size="40KB")
    assert (tmp_path / "source" / "model.safetensors.index.json").exists()
    ended = a_run(tmp_path, config, tmp_path / "source", **STILL).run(1, **layout)
    assert not ended.errors, ended.errors
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model", local_files_only=True)
    theirs = dict(model.named_parameters())
    assert {name for name, _ in exported.named_parameters()} == set(theirs)
    assert [n for n, p in exported.named_parameters() if not torch.equal(p, theirs[n])] == []
    ids = torch.arange(2 * 16).reshape(2, 16) * 7 % ROWS
    assert torch.equal(exported.eval()(ids).logits, model.eval()(ids).logits)


def test_weights_of_another_precision_are_converted(tmp_path: Path) -> None:
    config = config_of("llama")
    model = a_model(config, torch.bfloat16)
    put(model, tmp_path / "source")
    run = a_run(tmp_path, config, tmp_path / "source", **STILL)
    assert not run.run(1).errors
    exported = load_file(tmp_path / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in exported.values()} == {torch.float32}
    assert all(torch.equal(exported[n], p.float()) for n, p in model.named_parameters())


def test_a_restart_before_the_first_checkpoint_begins_from_the_same_weights_and_later_ones_from_the_checkpoint(
    tmp_path: Path,
) -> None:
    config = config_of("llama")
    put(a_model(config), tmp_path / "source")
    run = a_run(tmp_path, config, tmp_path / "source")
    first = run.run(1, pause_after=1)
    assert not first.errors, first.errors
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    for path in (tmp_path / "source").glob("*.safetensors"):
        path.unlink()
    second = run.run(2, restore=Restore(RestoreSource.DURABLE, 1, 1, found.name))
    assert not second.errors, second.errors
    third = run.run(3)
    assert third.errors
    assert "spec.model.source.uri" in third.errors[0].message


def read_parts(rank: int, folder: Path, config: dict[str, Any]) -> tuple[int, int]:
    """(elements that were read, elements of this rank) with two tensor ranks."""
    from tests.trainer.layouts import a_rung

    from trainer.mesh import build_axes
    from trainer.parallelise import parallelise
    from trainer.stage import build_stages
    from trainer.weights import fill_from

    axes = build_axes(a_rung(global_batch=2, tensor=2), rank)
    model = model_config(config, ROWS)
    stages = build_stages(model, axes, torch.float32, sequence_length=16, float64_norms=False)
    parameters = parallelise(stages, axes)
    source = WeightsFolder(folder, "file:///w")
    read, original = 0, source.read

    def counted(name: str, box: tuple[slice, ...]) -> torch.Tensor:
        nonlocal read
        part = original(name, box)
        read += part.numel()
        return part

    source.read = counted  # type: ignore[method-assign]
    fill_from(source, parameters, model)
    return read, sum(parameter.live.numel() for parameter in parameters)


def test_each_rank_reads_its_part_and_no_more(tmp_path: Path) -> None:
    put(a_model(config_of("llama")), tmp_path)
    for read, own in run_world(read_parts, 2, tmp_path, config_of("llama")):
        assert read == own


def test_the_tensors_of_every_family_have_a_place_in_the_state() -> None:
    for family in FAMILIES:
        config = config_of(family)
        for name, parameter in a_model(config).named_parameters():
            shape = tuple(parameter.shape)
            assert torch.Size(stored_shape(config["model_type"], name, shape)).numel() == parameter.numel()


# What does not fit ----------------------------------------------------------------


def refusal(folder: Path, config: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as raised:
        check_source(WeightsFolder(folder, "file:///w"), model_config(config, config["vocab_size"]))
    return str(raised.value)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    put(a_model(config_of("llama")), tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_with_its_own_config_is_taken(tmp_path: Path, family: str) -> None:
    config = config_of(family)
    check_source(put(a_model(config), tmp_path), model_config(config, ROWS))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden_size", 64, "spec.model.config.hidden_size: 64: the model in file:///w was made with 32"),
        (
            "num_hidden_layers",
            3,
            "spec.model.config.num_hidden_layers: 3: the model in file:///w was made with 2",
        ),
        (
            "rms_norm_eps",
            1e-5,
            "spec.model.config.rms_norm_eps: 1e-05: the model in file:///w was made with 1e-06",
        ),
        (
            "rope_theta",
            9000.0,
            "spec.model.config.rope_theta: 9000.0: the model in file:///w was made with 5000.0. "
            "Fix: set rope_theta: 5000.0",
        ),
        ("vocab_size", 320, "spec.model.config.vocab_size: 320: the model in file:///w was made with 300"),
        (
            "model_type",
            "mistral",
            "spec.model.config.model_type: 'mistral': the model in file:///w is of type 'llama'",
        ),
        ("tie_word_embeddings", True, "spec.model.config.tie_word_embeddings"),
    ],
)
def test_another_config_is_refused_with_the_key_and_both_values(
    source: Path, key: str, value: Any, said: str
) -> None:
    assert said in refusal(source, {**config_of("llama"), key: value})


def test_a_scaled_rope_that_the_specification_cannot_give_is_refused(source: Path) -> None:
    content = json.loads((source / "config.json").read_text())
    content["rope_parameters"] = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
    (source / "config.json").write_text(json.dumps(content))
    assert "spec.model.config.rope_parameters" in refusal(source, config_of("llama"))


def test_gpt2_is_compared_by_the_names_of_the_specification_and_its_files_may_leave_out_n_inner(
    tmp_path: Path,
) -> None:
    config = {**config_of("gpt2"), "intermediate_size": 128}
    put(a_model(config), tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "n_inner": None}))
    check_source(WeightsFolder(tmp_path, "file:///w"), model_config(config, ROWS))
    assert "spec.model.config.hidden_size: 64" in refusal(tmp_path, {**config, "hidden_size": 64})


def test_an_agent_finds_another_config_before_it_imports_anything(source: Path) -> None:
    config = {key: value for key, value in config_of("llama").items() if key != "rope_theta"}
    model = {"init": "Weights", "source": {"uri": source.as_uri()}, "config": config}
    script = """
import json, sys
from trainer.agent.parts import real_parts
from trainer.errors import ConfigError
spec = json.loads(sys.argv[1])
try:
    real_parts().check_spec(spec)
except ConfigError as error:
    print(error)
print(sorted({"torch", "transformers", "safetensors"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", script, json.dumps({"model": model})]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said[0].startswith(
        "spec.model.config.rope_theta: 'left out': the model there was made with 5000.0 (file://"
    )
    assert said[0].endswith("Fix: set rope_theta: 5000.0, or name another model")
    assert said[1] == "[]"


def rewrite(folder: Path, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors")


def test_a_missing_a_misshapen_and_a_superfluous_tensor_are_named(source: Path) -> None:
    whole = load_file(source / "model.safetensors")
    rewrite(source, lambda t: {n: v for n, v in t.items() if "layers.1.mlp.up_proj" not in n})
    assert "it has no tensor model.layers.1.mlp.up_proj.weight" in refusal(source, config_of("llama"))
    save_file({**whole, "model.norm.weight": torch.zeros(33)}, source / "model.safetensors")
    assert "model.norm.weight is [33] there, but spec.model.config makes it [32]" in refusal(
        source, config_of("llama")
    )
    save_file({**whole, "model.extra": torch.zeros(3)}, source / "model.safetensors")
    assert "it has 1 tensors that the model has no place for, such as model.extra" in refusal(
        source, config_of("llama")
    )
    save_file(
        {**whole, "model.norm.weight": torch.zeros(32, dtype=torch.int32)}, source / "model.safetensors"
    )
    assert "model.norm.weight is of type I32" in refusal(source, config_of("llama"))
    save_file({n: v for n, v in whole.items() if n != "lm_head.weight"}, source / "model.safetensors")
    assert "set spec.model.config.tie_word_embeddings to true" in refusal(source, config_of("llama"))


def test_a_base_model_without_the_prefix_of_its_root_is_taken(tmp_path: Path) -> None:
    config = config_of("llama, tied")
    model = a_model(config)
    model.save_pretrained(tmp_path)
    rewrite(
        tmp_path, lambda tensors: {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    )
    check_source(WeightsFolder(tmp_path, "file:///w"), model_config(config, ROWS))


def test_a_folder_that_is_not_whole_says_what_is_wrong_with_it(source: Path, tmp_path: Path) -> None:
    def said(folder: Path) -> str:
        with pytest.raises(ConfigError) as raised:
            WeightsFolder(folder, "file:///w")
        return str(raised.value)

    file = source / "model.safetensors"
    good = file.read_bytes()
    file.write_bytes(good[:-10])
    assert "it was cut off" in said(source)
    file.write_bytes(struct.pack("<Q", 1 << 60) + good[8:])
    assert "model.safetensors is not a whole safetensors file" in said(source)
    file.unlink()
    assert "there is neither model.safetensors nor model.safetensors.index.json" in said(source)
    (source / "pytorch_model.bin").touch()
    assert "but pytorch_model.bin" in said(source)
    (source / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors"}})
    )
    assert "model-1.safetensors is not there, but model.safetensors.index.json names it" in said(source)
    assert "there is no such folder" in said(tmp_path / "nowhere")


def test_a_node_looks_at_the_weights_before_a_rank_starts(tmp_path: Path) -> None:
    config = config_of("llama")
    put(a_model(config), tmp_path / "source")
    run = a_run(tmp_path, config, tmp_path / "source")
    said: list[str] = []
    preparing.prepare(run.spec, tmp_path / "cache", said.append)
    assert "looking at the weights" in said
    run.spec["model"]["config"] = {**config, "num_hidden_layers": 4}
    with pytest.raises(ConfigError, match=r"spec\.model\.config\.num_hidden_layers"):
        preparing.prepare(run.spec, tmp_path / "cache", said.append)


def test_the_fingerprint_of_a_folder_tells_it_from_another(source: Path) -> None:
    folder = WeightsFolder(source, "file:///w")
    first = folder.fingerprint()
    assert WeightsFolder(source, "file:///elsewhere").fingerprint() == first
    rewrite(source, lambda tensors: {name: tensor + 1 for name, tensor in tensors.items()})
    assert WeightsFolder(source, "file:///w").fingerprint() != first


def test_a_checkpoint_of_imported_weights_holds_them(tmp_path: Path) -> None:
    config = config_of("llama")
    model = a_model(config)
    put(model, tmp_path / "source")
    run = a_run(tmp_path, config, tmp_path / "source", **STILL)
    assert not run.run(1, shard=2, pause_after=1).errors
    found = newest(tmp_path / "checkpoints")
    assert found is not None
    items = read_manifest(tmp_path / "checkpoints", found.name).items
    weights = {i.name: torch.empty(i.shape) for i in items if i.name.startswith("model.")}
    from_durable(tmp_path / "checkpoints", found.name, weights)
    assert all(torch.equal(weights[f"model.{name}"], p) for name, p in model.named_parameters())
