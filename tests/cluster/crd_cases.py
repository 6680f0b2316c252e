"""One manifest for each validation rule of the CRD that the rule, and the rule alone, refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.operator.api_builders import REMOVED, a_pod_template

Change = tuple[str, Any]


@dataclass(frozen=True)
class Case:
    """`rule` is (path of the schema node, its number among the node's rules)."""

    rule: tuple[str, int]
    said: str  # by the API server, in so many words
    changes: tuple[Change, ...]

    @property
    def name(self) -> str:
        return f"{self.rule[0].removeprefix('root.')}-{self.rule[1]}"


def _case(path: str, number: int, said: str, *changes: Change) -> Case:
    return Case((f"root.{path}" if path else "root", number), said, changes)


def _pod(path: str, number: int, said: str, *changes: Change) -> Case:
    return _case(f"spec.podTemplate.{path}", number, said, ("spec/podTemplate", a_pod_template(*changes)))


def _deepspeed(path: str, number: int, said: str, *changes: Change) -> Case:
    return _case(path, number, said, *DEEPSPEED, *changes)


DEEPSPEED = (("spec/parallelism", {"engine": "DeepSpeed"}), ("spec/scale", {"minNodes": 1, "maxNodes": 1}))
_PLACE = "is not a place that this version can use; hint: use file:///path"
_RELATIVE = "is not an absolute path; hint: write file:/// and the path from the root"
_TRAINER = "spec.containers[]"
_ENV = "spec/containers/0/env"
_PER_NODE = {"cpu": "1", "memory": "1Gi"}
_WEIGHTS = {"uri": "file:///weights"}
_SOURCE = {"name": "heldout", "uri": "python-stdlib:heldout", "format": "Text"}


def _stage(after: int, *, name: str = "stdlib", weight: int = 1) -> dict[str, Any]:
    return {"afterTokens": after, "weights": [{"name": name, "weight": weight}]}


CREATES = (
    _case("", 0, f"metadata.name: {'x' * 41} has 41 characters, at most 40", ("metadata/name", "x" * 41)),
    _case(
        "", 1, "metadata.name: a.b may have lower-case letters, digits and - only", ("metadata/name", "a.b")
    ),
    _case(
        "spec",
        0,
        "spec.training.sequenceLength: 512 is more than spec.model.config.max_position_embeddings (256)",
        ("spec/training/sequenceLength", 512),
    ),
    _case(
        "spec",
        1,
        "spec.output.uri: file:///data/checkpoints is the same as spec.checkpoint.location.uri",
        ("spec/output/uri", "file:///data/checkpoints"),
    ),
    _case(
        "spec.model",
        0,
        "vocab_size: 5000 differs from spec.model.tokenizer.train.vocabularySize (1024)",
        ("spec/model/config/vocab_size", 5000),
    ),
    _case(
        "spec.model",
        1,
        "spec.model.source: is there with init: Weights, and only then",
        ("spec/model/source", _WEIGHTS),
    ),
    _case(
        "spec.model", 2, "spec.model.tokenizer: required, but not there", ("spec/model/tokenizer", REMOVED)
    ),
    _case(
        "spec.model",
        3,
        "spec.model.tokenizer.train: a new tokenizer does not fit weights that know another",
        ("spec/model/init", "Weights"),
        ("spec/model/source", _WEIGHTS),
        ("spec/model/config/vocab_size", 1024),
    ),
    _case(
        "spec.model",
        4,
        "spec.model.config.vocab_size: required with init: Weights",
        ("spec/model/init", "Weights"),
        ("spec/model/source", _WEIGHTS),
        ("spec/model/tokenizer", REMOVED),
    ),
    _case(
        "spec.model.source.uri",
        0,
        f"s3://models/a {_PLACE}",
        ("spec/model/init", "Weights"),
        ("spec/model/source", {"uri": "s3://models/a"}),
        ("spec/model/tokenizer", REMOVED),
        ("spec/model/config/vocab_size", 1024),
    ),
    _case(
        "spec.model.source.uri",
        1,
        f"file://x {_RELATIVE}",
        ("spec/model/init", "Weights"),
        ("spec/model/source", {"uri": "file://x"}),
        ("spec/model/tokenizer", REMOVED),
        ("spec/model/config/vocab_size", 1024),
    ),
    _case(
        "spec.model.config",
        0,
        "num_key_value_heads: 3 does not divide num_attention_heads (4)",
        ("spec/model/config/num_key_value_heads", 3),
    ),
    _case(
        "spec.model.config",
        1,
        "hidden_size: 130 is not an even multiple of num_attention_heads (4)",
        ("spec/model/config/hidden_size", 130),
    ),
    _case(
        "spec.model.config",
        2,
        "has a key that models of its model_type do not have",
        ("spec/model/config/sliding_window", 64),
    ),
    _case(
        "spec.model.tokenizer",
        0,
        "spec.model.tokenizer: needs exactly one of uri and train",
        ("spec/model/tokenizer/uri", "file:///tokenizer"),
    ),
    _case("spec.model.tokenizer.uri", 0, f"hf://a/b {_PLACE}", ("spec/model/tokenizer", {"uri": "hf://a/b"})),
    _case(
        "spec.model.tokenizer.uri", 1, f"file://x {_RELATIVE}", ("spec/model/tokenizer", {"uri": "file://x"})
    ),
    _case("spec.data.sources[].uri", 0, f"gs://lake/x {_PLACE}", ("spec/data/sources/0/uri", "gs://lake/x")),
    _case("spec.data.sources[].uri", 1, f"file://x {_RELATIVE}", ("spec/data/sources/0/uri", "file://x")),
    _case(
        "spec.data",
        0,
        "spec.data.sources: with several sources each needs a weight",
        ("spec/data/sources", [_SOURCE, {**_SOURCE, "name": "b", "weight": 1}]),
    ),
    _case(
        "spec.data",
        1,
        "spec.data.sources: no source has a weight above 0",
        ("spec/data/sources", [{**_SOURCE, "weight": 0}, {**_SOURCE, "name": "b", "weight": 0}]),
    ),
    _case(
        "spec.data",
        2,
        "spec.data.stages: are not in the order of afterTokens",
        ("spec/data/stages", [_stage(2000), _stage(1000)]),
    ),
    _case(
        "spec.data",
        3,
        "spec.data.stages: a weight names no source",
        ("spec/data/stages", [_stage(1000, name="other")]),
    ),
    _case(
        "spec.data.stages[]",
        0,
        "spec.data.stages: a stage without a weight above 0 reads nothing",
        ("spec/data/stages", [_stage(1000, weight=0)]),
    ),
    _case(
        "spec.data.validation[].uri",
        0,
        f"pvc://c/../x {_PLACE}",
        ("spec/data/validation", [{**_SOURCE, "uri": "pvc://c/../x"}]),
    ),
    _case(
        "spec.data.validation[].uri",
        1,
        f"file://./x {_RELATIVE}",
        ("spec/data/validation", [{**_SOURCE, "uri": "file://./x"}]),
    ),
    _case(
        "spec.training",
        0,
        "globalBatch.tokens: 1000 is not a multiple of spec.training.sequenceLength (128); hint: use 1024",
        ("spec/training/globalBatch", {"tokens": 1000}),
    ),
    _case(
        "spec.training",
        1,
        "spec.training.schedule.warmupSteps: a warm-up of 301 steps is longer than the run of 300 steps",
        ("spec/training/schedule", {"warmupSteps": 301}),
    ),
    _case(
        "spec.training.schedule",
        0,
        "spec.training.schedule: decayPermille and decaySteps are for WSD only",
        ("spec/training/schedule", {"name": "Linear", "decaySteps": 3}),
    ),
    _case(
        "spec.training.schedule",
        1,
        "spec.training.schedule: takes at most one of decayPermille and decaySteps",
        ("spec/training/schedule", {"name": "WSD", "decaySteps": 3, "decayPermille": 3}),
    ),
    _case(
        "spec.training.schedule",
        2,
        "spec.training.schedule: warmupPermille + decayPermille is more than 1000, the whole run",
        ("spec/training/schedule", {"name": "WSD", "warmupPermille": 901}),
    ),
    _case(
        "spec.training.duration",
        0,
        "spec.training.duration: needs exactly one of tokens and steps",
        ("spec/training/duration", {}),
    ),
    _case(
        "spec.training.globalBatch",
        0,
        "spec.training.globalBatch: needs exactly one of tokens and sequences",
        ("spec/training/globalBatch/tokens", 128),
    ),
    _case(
        "spec.scale",
        0,
        "spec.scale.minNodes: 3 is more than spec.scale.maxNodes (2); hint: lower minNodes to 2 or raise maxNodes",
        ("spec/scale/minNodes", 3),
    ),
    _case(
        "spec.resources",
        0,
        "spec.resources.perNode: needs cpu and memory",
        ("spec/resources/perNode", {"cpu": "1", "nvidia.com/gpu": "1"}),
    ),
    _case(
        "spec.resources",
        1,
        "spec.resources.perNode: a resource other than cpu and memory is an accelerator",
        ("spec/resources/perNode", {**_PER_NODE, "gpu": "1"}),
    ),
    _case(
        "spec.resources",
        2,
        "spec.resources.perNode: names more than one kind of accelerator",
        ("spec/resources/perNode", {"memory": "1Gi", "nvidia.com/gpu": "1", "amd.com/gpu": "1"}),
    ),
    _case(
        "spec.resources",
        3,
        "spec.resources.processesPerNode: there is one process for each accelerator",
        ("spec/resources", {"perNode": {**_PER_NODE, "nvidia.com/gpu": "1"}, "processesPerNode": 1}),
    ),
    _case(
        "spec.checkpoint.location.uri",
        0,
        f"hf://a/b {_PLACE}, pvc://claim/path or s3://bucket/prefix",
        ("spec/checkpoint/location/uri", "hf://a/b"),
    ),
    _case(
        "spec.checkpoint.location.uri",
        1,
        f"file://x {_RELATIVE}",
        ("spec/checkpoint/location/uri", "file://x"),
    ),
    _case(
        "spec.checkpoint.adopt",
        0,
        "spec.checkpoint.adopt: true is not supported by this version",
        ("spec/checkpoint/adopt", True),
    ),
    _case(
        "spec.checkpoint.durable",
        0,
        "spec.checkpoint.durable: takes at most one of intervalSeconds and intervalSteps",
        ("spec/checkpoint/durable", {"intervalSeconds": 1, "intervalSteps": 1}),
    ),
    _case("spec.output.uri", 0, f"pvc://claim {_PLACE}", ("spec/output/uri", "pvc://claim")),
    _case("spec.output.uri", 1, f"file://x {_RELATIVE}", ("spec/output/uri", "file://x")),
    _pod(
        "metadata.labels",
        0,
        "spec.podTemplate.metadata.labels: keys that begin with trainingrun.dev/",
        ("metadata/labels", {"app.kubernetes.io/instance": "x"}),
    ),
    _pod(
        "metadata.annotations",
        0,
        "spec.podTemplate.metadata.annotations: keys that begin with trainingrun.dev/",
        ("metadata/annotations", {"argocd.argoproj.io/tracking-id": "x"}),
    ),
    _pod(
        "spec",
        0,
        "containers[0].volumeMounts: mounts a volume that spec.podTemplate.spec.volumes does not have",
        ("spec/volumes", REMOVED),
    ),
    _pod(
        "spec.volumes[]",
        0,
        "trainingrun-x: names that begin with trainingrun- belong to the operator; hint: rename the volume",
        (
            "spec/volumes",
            [{"name": "scratch", "emptyDir": {}}, {"name": "trainingrun-x", "emptyDir": {}}],
        ),
    ),
    _pod(
        "spec.volumes[]",
        1,
        "scratch: needs exactly one source; hint: set one of emptyDir",
        ("spec/volumes/0/csi", {"driver": "x"}),
    ),
    _pod(
        f"{_TRAINER}.env[]",
        0,
        "TRAININGRUN_SLOT: names that begin with TRAININGRUN_ belong to the operator",
        (_ENV, [{"name": "TRAININGRUN_SLOT", "value": "1"}]),
    ),
    _pod(
        f"{_TRAINER}.env[]",
        1,
        "RANK: the agent sets it for each training process",
        (_ENV, [{"name": "RANK", "value": "1"}]),
    ),
    _pod(
        f"{_TRAINER}.env[]",
        2,
        "A: takes at most one of value and valueFrom",
        (_ENV, [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]),
    ),
    _pod(
        f"{_TRAINER}.env[].valueFrom",
        0,
        "needs exactly one of fieldRef, secretKeyRef and configMapKeyRef",
        (_ENV, [{"name": "A", "valueFrom": {}}]),
    ),
    _pod(
        f"{_TRAINER}.envFrom[]",
        0,
        "needs exactly one of secretRef and configMapRef",
        ("spec/containers/0/envFrom", [{"prefix": "A_"}]),
    ),
    _pod(
        f"{_TRAINER}.volumeMounts[]",
        0,
        "mountPath: data must be an absolute path without : and ..",
        ("spec/containers/0/volumeMounts/0/mountPath", "data"),
    ),
    _pod(
        f"{_TRAINER}.volumeMounts[]",
        1,
        "mountPath: /var/lib is in the way of a path that the worker uses itself",
        ("spec/containers/0/volumeMounts/0/mountPath", "/var/lib"),
    ),
)

CREATES += (
    _case(
        "spec",
        3,
        "spec.scale.minNodes: a run of the engine DeepSpeed has one size, but 1 is not spec.scale.maxNodes (2)",
        ("spec/parallelism", {"engine": "DeepSpeed"}),
    ),
    _deepspeed("spec", 5, "computes in FP32 and BF16 only", ("spec/training/precision", "FP64")),
    _deepspeed("spec", 6, "updates by AdamW only", ("spec/training/optimizer/name", "Lion")),
    _deepspeed(
        "spec", 7, "has no zLoss, emaDecay and compile", ("spec/training/overrides", {"emaDecay": 0.9})
    ),
    _case(
        "spec.parallelism",
        0,
        "spec.parallelism.deepspeed: does nothing with engine Native",
        ("spec/parallelism", {"deepspeed": {"zeroStage": 2}}),
    ),
    _deepspeed(
        "spec.parallelism",
        1,
        "spec.parallelism.engine: DeepSpeed splits by data only",
        ("spec/parallelism/axes", {"tensor": 2}),
    ),
    _deepspeed(
        "spec.parallelism.deepspeed",
        0,
        "spec.parallelism.deepspeed.offload: OptimizerAndParameters needs zeroStage 3",
        ("spec/parallelism/deepspeed", {"zeroStage": 2, "offload": "OptimizerAndParameters"}),
    ),
)

_FIXED = "cannot be changed once the run exists; hint: delete the run"
_UNLIKE = a_pod_template(
    (
        "spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/labelSelector",
        {"matchLabels": {"noisy": "false"}},
    )
)

# Each is a change of a run that exists, with `a_pod_template()` as its pod template.
UPDATES = (
    _case(
        "spec",
        2,
        "spec.podTemplate: cannot be added to a run, or taken from it",
        ("spec/podTemplate", REMOVED),
    ),
    _case("spec.model", 5, f"spec.model: {_FIXED}", ("spec/model/config/num_hidden_layers", 8)),
    _case("spec.data", 4, f"spec.data: {_FIXED}", ("spec/data/seed", 1)),
    _case("spec.training", 2, f"spec.training: {_FIXED}", ("spec/training/duration/steps", 400)),
    _case("spec.resources", 4, f"spec.resources: {_FIXED}", ("spec/resources/perNode/cpu", "3")),
    _case(
        "spec.parallelism", 2, f"spec.parallelism: {_FIXED}", ("spec/parallelism", {"axes": {"tensor": 2}})
    ),
    _case(
        "spec.checkpoint.location",
        0,
        f"spec.checkpoint.location: {_FIXED}",
        ("spec/checkpoint/location/uri", "pvc://claim/other"),
    ),
    _case(
        "spec.checkpoint.memory.copies",
        0,
        f"spec.checkpoint.memory.copies: {_FIXED}",
        ("spec/checkpoint/memory", {"copies": 1}),
    ),
    _case("spec.output", 0, f"spec.output: {_FIXED}", ("spec/output/uri", "pvc://claim/other")),
    _case("spec.podTemplate", 0, f"spec.podTemplate: {_FIXED}", ("spec/podTemplate", _UNLIKE)),
)

# A change of a run of that engine, which exists.
RESIZED = _case(
    "spec",
    4,
    "spec.scale.maxNodes: a run of the engine DeepSpeed has one size, by which its state is cut: it has 1 nodes and "
    "cannot get 2",
    *DEEPSPEED,
    ("spec/scale", {"minNodes": 2, "maxNodes": 2}),
)

UNBREAKABLE = {("root.spec.task", 0)}
"""Fields that have one value only in this version, so that nothing can change."""
