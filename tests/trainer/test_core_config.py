"""The resolved spec is read as it is, and what cannot work is refused with field, value and fix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.layouts import a_rung

from trainer.architecture import model_config
from trainer.attention import window_of
from trainer.config import check_rung, read_config, vocabulary_size
from trainer.errors import ConfigError
from trainingrun.protocol.families import FAMILIES, head_dim, sliding_window

GOLDEN = Path(__file__).parent.parent / "golden" / "resolved-spec.json"


def a_spec(**changes: Any) -> dict[str, Any]:
    """The golden spec; `changes` are dotted paths with `__` for the dot."""
    spec: dict[str, Any] = json.loads(GOLDEN.read_text())
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = spec
        for parent in parents:
            place = place[parent]
        place[last] = value
    return spec


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(a_spec(**changes))
    return str(caught.value)


def test_the_golden_spec_is_read() -> None:
    config = read_config(a_spec())
    assert (config.training.total_steps, config.training.global_batch, config.training.sequence_length) == (
        300,
        32,
        128,
    )
    assert config.output == Path("/abs/models/pretrain-stdlib")
    assert config.training.optimizer.betas == (0.9, 0.95)
    assert config.threads_per_process == 1
    assert vocabulary_size(config.model, 1000) == 1024


def test_the_configuration_is_read_without_torch() -> None:
    code = "import sys, trainer.config; sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}).returncode == 0
    )


def test_a_duration_in_tokens_is_rounded_up_to_whole_steps() -> None:
    assert read_config(a_spec(training__duration={"steps": None, "tokens": 8192})).training.total_steps == 2
    assert read_config(a_spec(training__duration={"steps": None, "tokens": 8193})).training.total_steps == 3


def test_a_global_batch_in_tokens_must_be_whole_sequences() -> None:
    assert (
        read_config(a_spec(training__globalBatch={"tokens": 4096, "sequences": None})).training.global_batch
        == 32
    )
    message = refusal(training__globalBatch={"tokens": 4100, "sequences": None})
    assert "spec.training.globalBatch.tokens: 4100" in message
    assert "use 4224 or 4096" in message


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model__config__model_type": "mamba"}, "spec.model.config.model_type: 'mamba'"),
        ({"model__config__num_key_value_heads": 3}, "spec.model.config.num_key_value_heads: 3"),
        ({"model__config__hidden_size": 130}, "spec.model.config.hidden_size: 130"),
        ({"model__config__num_hidden_layers": 0}, "spec.model.config.num_hidden_layers: 0"),
        ({"training__sequenceLength": 512}, "spec.training.sequenceLength: 512"),
        ({"training__precision": "FP8"}, "spec.training.precision: 'FP8'"),
        ({"training__optimizer__name": "SGD"}, "spec.training.optimizer.name: 'SGD': not supported"),
        ({"resources__perNode__nvidia.com/gpu": "8"}, "spec.resources.perNode[nvidia.com/gpu]: '8'"),
        ({"output__uri": "s3://bucket/model"}, "spec.output.uri: 's3://bucket/model'"),
    ],
)
def test_what_the_trainer_cannot_do_is_refused_with_its_field_and_a_fix(
    changes: dict[str, Any], field: str
) -> None:
    message = refusal(**changes)
    assert message.startswith(field)
    assert ". Fix: " in message


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused() -> None:
    with pytest.raises(ConfigError, match="use at least 1025"):
        vocabulary_size(read_config(a_spec()).model, 1025)


def rung_refusal(spec: dict[str, Any], **axes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_rung(read_config(spec), a_rung(global_batch=32, **axes))
    return str(caught.value)


def test_a_rung_that_divides_the_model_and_the_batch_is_accepted() -> None:
    check_rung(read_config(a_spec()), a_rung(global_batch=32, tensor=2, replicate=2, pipeline=2, shard=3))


def test_a_tensor_degree_that_does_not_divide_the_heads_is_refused_with_the_nearest_that_does() -> None:
    message = rung_refusal(a_spec(), tensor=4)
    assert (
        "spec.parallelism.axes.tensor: 4: does not divide spec.model.config.num_key_value_heads = 2"
        in message
    )
    assert "the nearest that fits is tensor 2" in message


def test_a_pipeline_that_does_not_divide_the_layers_is_refused() -> None:
    assert "num_hidden_layers = 4" in rung_refusal(a_spec(), pipeline=3)


def test_tied_embeddings_may_be_split_over_a_pipeline() -> None:
    spec = a_spec(model__config__tie_word_embeddings=True)
    check_rung(read_config(spec), a_rung(global_batch=32, pipeline=2))


def test_two_stages_a_rank_need_twice_the_layers() -> None:
    message = rung_refusal(a_spec(), pipeline=4, schedule="ZBV", micro_batch=1)
    assert "pipeline 4 x 2 stages a rank (ZBV) = 8 stages do not divide" in message
    assert "the nearest that fits is pipeline 2" in message


def test_interleaved_micro_batches_come_in_rounds() -> None:
    message = rung_refusal(a_spec(), pipeline=2, schedule="Interleaved1F1B", micro_batch=11)
    assert "rung.accumulation: 3" in message
    assert "use 4" in message


def test_a_context_that_does_not_divide_the_sequence_is_refused() -> None:
    message = rung_refusal(a_spec(), context=3)
    assert "spec.parallelism.axes.context: 3: does not divide spec.training.sequenceLength = 128" in message


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_each_family_is_read_with_the_defaults_of_transformers(kind: str) -> None:
    given = {key: value for key, value in a_spec()["model"]["config"].items() if key != "tie_word_embeddings"}
    if not FAMILIES[kind].grouped:
        del given["num_key_value_heads"]
    config = read_config(a_spec(model__config={**given, "model_type": kind})).model
    built = model_config(config.transformers_config, 1024)
    assert config.tied_embeddings is built.tie_word_embeddings
    assert head_dim(given | {"model_type": kind}) == getattr(built, "head_dim", 128 // 4)
    assert sliding_window(given | {"model_type": kind}) == window_of(built, 0)


def test_a_mixture_of_experts_is_refused_with_the_reason() -> None:
    for kind in ("mixtral", "qwen3_moe", "some_moe"):
        message = refusal(model__config__model_type=kind)
        assert "the loss that balances its experts" in message
        assert "use one of llama, qwen2" in message


def test_a_key_that_a_family_does_not_have_is_refused_instead_of_ignored() -> None:
    assert "spec.model.config.sliding_window: 8: a model of the type llama has none" in refusal(
        model__config__sliding_window=8
    )


def test_a_rung_for_another_batch_is_refused_with_the_whole_equation() -> None:
    with pytest.raises(
        ConfigError, match=r"data 2 x micro-batch 2 x accumulation 8 - padding 2 = 30 sequences"
    ):
        check_rung(read_config(a_spec()), a_rung(global_batch=30, replicate=2))


def test_a_pipeline_needs_as_many_micro_batches_as_stages() -> None:
    assert "at least as many micro-batches" in rung_refusal(a_spec(), pipeline=2, micro_batch=32)
