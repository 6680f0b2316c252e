"""Each way in which a manifest can be wrong gives one error that names field, value and fix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.api_builders import BASE, REMOVED, manifest, only_error, refusal

from trainingrun.api.errors import InvalidManifest
from trainingrun.api.load import parse

TWO_SOURCES = [
    {"name": "a", "uri": "file:///a", "format": "Text"},
    {"name": "b", "uri": "file:///b", "format": "Text"},
]

REFUSALS: list[tuple[str, Any, str, str]] = [
    # path, value, the error without its hint, a part of the hint
    (
        "apiVersion",
        "trainingrun.dev/v1",
        "apiVersion: expected trainingrun.dev/v1alpha1, got the string",
        "write",
    ),
    (
        "apiVersion",
        REMOVED,
        "apiVersion: required, but not there",
        "add apiVersion: trainingrun.dev/v1alpha1",
    ),
    ("kind", "Pod", "kind: expected TrainingRun, got the string 'Pod'", "write kind: TrainingRun"),
    ("metadata", REMOVED, "metadata: required, but not there", "add metadata (name and namespace)"),
    ("metadata/name", REMOVED, "metadata.name: required, but not there", "add name"),
    ("metadata/name", 5, "metadata.name: expected a string, got the integer 5", "put it in quotes: '5'"),
    ("metadata/name", "x" * 41, "' has 41 characters, at most 40 are allowed", "shorten it"),
    (
        "metadata/name",
        "My_Run",
        "metadata.name: 'My_Run' may have lower-case letters",
        "use for example my-run",
    ),
    ("spec", REMOVED, "spec: required, but not there", "add spec"),
    ("spec", 3, "spec: expected a mapping, got the integer 3", "write a mapping"),
    ("spec/task", "train", "spec.task: expected pretrain, got the string 'train'", "use pretrain"),
    # unknown fields
    ("spec/scale/minNode", 1, "spec.scale.minNode: unknown field; did you mean minNodes?", "rename minNode"),
    ("spec/Scale", {}, "spec.Scale: unknown field; did you mean scale?", "rename Scale to scale"),
    ("spec/scale/spot", 1, "spec.scale.spot: unknown field", "the fields here are: minNodes, maxNodes"),
    ("spek", 1, "spek: unknown field; did you mean spec?", "rename spek to spec"),
    ("spec/model/config/num_layers", 2, "spec.model.config.num_layers: unknown field", "num_hidden_layers"),
    # wrong types
    ("spec/scale/minNodes", "two", "spec.scale.minNodes: expected an integer, got the string 'two'", "write"),
    ("spec/scale/minNodes", True, "spec.scale.minNodes: expected an integer, got the boolean true", "write"),
    ("spec/scale/minNodes", 1.5, "spec.scale.minNodes: expected an integer, got the number 1.5", "write"),
    ("spec/scale/minNodes", None, "spec.scale.minNodes: expected an integer, got null", "write an integer"),
    ("spec/scale", [1], "spec.scale: expected a mapping, got a list with 1 item", "write a mapping"),
    (
        "spec/data/sources",
        {},
        "spec.data.sources: expected a list, got a mapping with 0 keys",
        "write a list",
    ),
    ("spec/checkpoint/adopt", "yes", "adopt: expected true or false, got the string 'yes'", "true or false"),
    (
        "spec/data/sources/0/uri",
        7,
        "spec.data.sources[0].uri: expected a string, got the integer 7",
        "quotes",
    ),
    ("spec/training/optimizer/betas", [0.9, "x"], "betas[1]: expected a number, got the string 'x'", "write"),
    # bounds
    ("spec/scale/minNodes", 0, "spec.scale.minNodes: 0 is less than the minimum, 1", "use at least 1"),
    ("spec/scale/maxNodes", 5000, "spec.scale.maxNodes: 5000 is more than the maximum, 4096", "at most 4096"),
    (
        "spec/training/optimizer/learningRate",
        0,
        "learningRate: 0 is less than the minimum, 1e-12",
        "at least",
    ),
    ("spec/training/optimizer/learningRate", float("nan"), "expected a finite number, got", "finite number"),
    ("spec/training/optimizer/betas", [0.9], "betas: a list with 1 item, at least 2 needed", "add 1"),
    ("spec/training/optimizer/betas", [0.9, 1], "betas[1]: 1 is not a decay", "[0.9, 0.95]"),
    ("spec/training/schedule/warmupPermille", 1001, "1001 is more than the maximum, 1000", "at most 1000"),
    ("spec/training/seed", -1, "spec.training.seed: -1 is less than the minimum, 0", "at least 0"),
    ("spec/data/sources", [], "spec.data.sources: a list with 0 items, at least 1 needed", "add 1"),
    ("spec/data/validation", TWO_SOURCES, "spec.data.validation: a list with 2 items, at most 1", "remove 1"),
    ("spec/data/sources/0/name", "A b", "spec.data.sources[0].name: 'A b' may have lower-case", "rename it"),
    # rules
    (
        "spec/scale/minNodes",
        3,
        "spec.scale.minNodes: 3 is more than spec.scale.maxNodes (2)",
        "raise maxNodes to 3",
    ),
    (
        "spec/training/duration",
        {},
        "spec.training.duration: neither tokens nor steps is set",
        "{steps: 1000}",
    ),
    ("spec/training/duration", {"steps": 1, "tokens": 1}, "both tokens and steps are set", "exactly one"),
    ("spec/training/globalBatch", {}, "neither tokens nor sequences is set", "{sequences: 32}"),
    (
        "spec/training/globalBatch",
        {"sequences": 1, "tokens": 128},
        "both tokens and sequences are set",
        "one",
    ),
    (
        "spec/training/globalBatch",
        {"tokens": 1000},
        "spec.training.globalBatch.tokens: 1000 is not a multiple of spec.training.sequenceLength (128): "
        "1000 = 7 x 128 + 104",
        "use 896 (7 sequences) or 1024 (8 sequences)",
    ),
    ("spec/training/globalBatch", {"tokens": 100}, "100 = 0 x 128 + 100", "use 128 (1 sequence)"),
    (
        "spec/training/sequenceLength",
        512,
        "spec.training.sequenceLength: 512 is more than spec.model.config.max_position_embeddings (256)",
        "lower sequenceLength to 256 or raise max_position_embeddings to 512",
    ),
    (
        "spec/model/config/num_key_value_heads",
        3,
        "3 does not divide num_attention_heads: 4 = 1 x 3 + 1",
        "2 or 4",
    ),
    (
        "spec/model/config/hidden_size",
        130,
        "130 / num_attention_heads (4) = 32.5 is not an even",
        "128 or 136",
    ),
    (
        "spec/model/config/head_dim",
        33,
        "spec.model.config.head_dim: 33 is not a multiple of 2",
        "multiple of 2",
    ),
    (
        "spec/model/config/model_type",
        "mamba",
        "model_type: expected llama or qwen2 or qwen3 or mistral or gemma or gpt2, got the string 'mamba'",
        "use llama",
    ),
    (
        "spec/model/config/model_type",
        "mixtral",
        "spec.model.config.model_type: mixtral is a mixture of experts: the loss that balances its experts",
        "use llama",
    ),
    (
        "spec/model/config/model_type",
        "mistrl",
        "got the string 'mistrl'",
        "did you mean mistral?",
    ),
    (
        "spec/model/config/vocab_size",
        5000,
        "spec.model.config.vocab_size: 5000 differs from spec.model.tokenizer.train.vocabularySize (1024)",
        "remove vocab_size, or set it to 1024",
    ),
    (
        "spec/model/tokenizer",
        REMOVED,
        "spec.model.tokenizer: required, but not there",
        "exactly one of uri and train",
    ),
    (
        "spec/model/tokenizer",
        {},
        "spec.model.tokenizer: neither uri nor train is set",
        "vocabularySize: 4096",
    ),
    (
        "spec/model/tokenizer/uri",
        "file:///t",
        "spec.model.tokenizer: both uri and train are set",
        "exactly one",
    ),
    (
        "spec/model/init",
        "Weights",
        "spec.model.source: required with init: Weights, but not there",
        "pvc://models/llama",
    ),
    (
        "spec/model/source",
        {"uri": "file:///w"},
        "spec.model.source: does nothing with init: Config",
        "init: Weights",
    ),
    (
        "spec/checkpoint/durable",
        {"intervalSeconds": 30, "intervalSteps": 10},
        "spec.checkpoint.durable: both intervalSeconds (30) and intervalSteps (10) are set",
        "remove one of them",
    ),
    (
        "spec/output/uri",
        "file:///data/checkpoints/",
        "is the same as spec.checkpoint.location.uri",
        "another folder",
    ),
    (
        "spec/output/uri",
        "file:///data/checkpoints/../checkpoints/model",
        "lies within spec.checkpoint.location.uri (file:///data/checkpoints)",
        "another folder",
    ),
    ("spec/output/uri", "file:///data", "is around spec.checkpoint.location.uri", "another folder"),
    (
        "spec/data/sources/0/uri",
        "file:///data/checkpoints/",
        "spec.checkpoint.location.uri: file:///data/checkpoints is the same as spec.data.sources[0].uri",
        "give the checkpoints another folder",
    ),
    (
        "spec/recovery/limits",
        [{"cause": "Application", "max": 1}, {"cause": "Application", "max": 2}],
        "spec.recovery.limits[1].cause: Application has a limit already, at limits[0]",
        "keep one",
    ),
    # places
    (
        "spec/data/sources/0/uri",
        "/data",
        "'/data' is not a file:// URI, pvc://claim/path, s3://bucket/path, https://host/path, python-stdlib:train",
        "write file:///data",
    ),
    ("spec/data/sources/0/uri", "gs://lake/x", "'gs://lake/x': gs:// is not supported", "use a file:// URI"),
    (
        "spec/data/sources/0/uri",
        "https://me:secret@host/x",
        "'https://me:secret@host/x' is not the address",
        "user",
    ),
    (
        "spec/data/sources/0/uri",
        "http://host",
        "'http://host' is not the address of a file",
        "https://host/path",
    ),
    (
        "spec/data/sources/0/uri",
        "python-stdlib:test",
        "'python-stdlib:test' is not a part",
        "python-stdlib:heldout",
    ),
    ("spec/data/sources/0/uri", "file://", "'file://' has no path", "and then the path"),
    ("spec/data/sources/0/uri", "file://~/x", "'file://~/x': ~ is not expanded", "from /"),
    ("spec/data/sources/0/uri", "file:///a\nb", "has a control character", "remove it"),
    ("spec/output/uri", "pvc://claim", "spec.output.uri: 'pvc://claim' has no path", "pvc://claim/path"),
    ("spec/output/uri", "pvc:///x", "'' cannot be the name of a PersistentVolumeClaim", "pvc://claim/path"),
    ("spec/checkpoint/location/uri", "pvc://My_Claim/x", "'My_Claim' cannot be the name", "lower-case"),
    (
        "spec/checkpoint/location/uri",
        "s3://bucket",
        "'s3://bucket' names no folder in a bucket",
        "s3://bucket/prefix",
    ),
    ("spec/checkpoint/location/uri", "s3://Bucket/x", "names no folder in a bucket", "s3://bucket/prefix"),
    (
        "spec/checkpoint/location/uri",
        "s3://bucket/a/../b",
        "names no folder in a bucket",
        "s3://bucket/prefix",
    ),
    (
        "spec/checkpoint/location/uri",
        "gs://bucket/x",
        "gs:// is not supported by this version",
        "pvc://claim/path",
    ),
    ("spec/output/uri", "s3://bucket/x", "s3:// is not supported by this version", "pvc://claim/path"),
    ("spec/checkpoint/location/uri", "pvc://c/../x", "'../x' is not a path inside of the volume", ".."),
    ("spec/data/sources/0/uri", "pvc://c/a/./b", "'a/./b' is not a path inside of the volume", "none"),
    ("spec/data/sources/0/uri", "pvc://c//a", "'/a' is not a path inside of the volume", "one /"),
    ("spec/data/sources/0/uri", "pvc://c/a%20b", "'a%20b' is not a path inside of the volume", "letters"),
    (
        "spec/model/tokenizer",
        {"uri": "hf://Qwen/Qwen3-8B"},
        "spec.model.tokenizer.uri: 'hf://Qwen/Qwen3-8B': hf:// is not supported by this version",
        "use a file:// URI or pvc://claim/path",
    ),
    (
        "spec/output/uri",
        "python-stdlib:train",
        "spec.output.uri: 'python-stdlib:train' is not a file://",
        "file://",
    ),
    ("spec/checkpoint/location/uri", "ftp://x", "'ftp://x' is not a file:// URI", "use a file:// URI"),
    # resources
    ("spec/resources/perNode", {"cpu": 1}, "perNode.memory: required, but only cpu is given", "memory: 4Gi"),
    ("spec/resources/perNode/gpu", 1, "perNode.gpu: unknown resource 'gpu' (1)", "such as nvidia.com/gpu"),
    ("spec/resources/perNode/memory", "4Gib", "the string '4Gib' is not a quantity", "write it like 4Gi"),
    ("spec/resources/perNode/memory", "2Pi", "2Pi is more than the maximum, 1Pi", "write what one node has"),
    (
        "spec/resources/perNode/cpu",
        "1e30",
        "1e30 is more than the maximum, 1000000",
        "write what one node has",
    ),
    ("spec/resources/perNode/memory", 4, "4 is less than the minimum, 64Mi", "did you mean 4Gi?"),
    (
        "spec/resources/perNode/cpu",
        0,
        "spec.resources.perNode.cpu: 0 is less than the minimum, 1m",
        "at least 1m",
    ),
    ("spec/resources/perNode/cpu", True, "expected a quantity such as 4Gi or 2, got the boolean", "quantity"),
    (
        "spec/resources/perNode",
        {"cpu": 1, "memory": "4Gi", "nvidia.com/gpu": "1500m"},
        'spec.resources.perNode["nvidia.com/gpu"]: 1500m is not a whole number of accelerators from 1 to 64',
        "how many",
    ),
    (
        "spec/resources/perNode",
        {"cpu": 1, "memory": "4Gi", "nvidia.com/gpu": 1, "amd.com/gpu": 1},
        "nvidia.com/gpu and amd.com/gpu are two kinds of accelerators",
        "remove nvidia.com/gpu or amd.com/gpu",
    ),
    (
        "spec/resources",
        {"perNode": {"cpu": 1, "memory": "4Gi", "nvidia.com/gpu": 8}, "processesPerNode": 2},
        "spec.resources.processesPerNode: 2 is given, but there is one process for each of the 8 nvidia",
        "remove processesPerNode",
    ),
]


@pytest.mark.parametrize(("path", "value", "message", "hint"), REFUSALS)
def test_a_wrong_field_is_named_with_its_value_and_a_fix(
    path: str, value: Any, message: str, hint: str
) -> None:
    error = only_error((path, value))
    first, _, second = str(error).partition("\n  hint: ")
    assert message in first
    assert hint in second


@pytest.mark.parametrize(
    "block", ["task", "model", "data", "training", "scale", "resources", "checkpoint", "output"]
)
def test_each_required_block_is_asked_for_with_what_it_is(block: str) -> None:
    error = only_error((f"spec/{block}", REMOVED))
    assert error.path == f"spec.{block}"
    assert error.fix.startswith(f"add {block} (")


def test_a_mistyped_required_field_is_one_error_not_two() -> None:
    error = only_error(("spec/scale", {"minNodes": 1, "maxnodes": 2}))
    assert str(error) == (
        "spec.scale.maxnodes: unknown field; did you mean maxNodes?\n  hint: rename maxnodes to maxNodes"
    )


def test_errors_come_in_the_order_of_the_fields() -> None:
    errors = refusal(("spec/output", {}), ("spec/task", 4), ("spec/scale/minNodes", "x")).errors
    assert [error.path for error in errors] == ["spec.task", "spec.scale.minNodes", "spec.output.uri"]


def test_a_tokenizer_in_a_folder_may_come_with_a_vocabulary_size() -> None:
    run = parse(
        manifest(("spec/model/tokenizer", {"uri": "file:///t"}), ("spec/model/config/vocab_size", 5000)), BASE
    )
    assert run.spec.model.config.vocab_size == 5000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _paths(value: Any, prefix: str = "") -> list[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [(f"{prefix}/{key}".lstrip("/"), inner) for key, inner in items]
    return [path for path, _ in below] + [deeper for path, inner in below for deeper in _paths(inner, path)]


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(_paths(manifest())), value=json_values)
def test_whatever_stands_in_a_field_the_answer_is_a_run_or_an_explanation(path: str, value: Any) -> None:
    try:
        parse(manifest((path, value)), BASE)
    except InvalidManifest as invalid:
        assert invalid.errors
        for error in invalid.errors:
            assert error.path
            assert error.message
            assert error.fix
