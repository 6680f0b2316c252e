"""Manifests for the API's tests: a right one, and the same with one thing changed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from trainingrun.api.errors import FieldError, InvalidManifest
from trainingrun.api.load import parse

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests" / "golden" / "run.yaml"
BASE = Path("/base")

REMOVED = object()
"""As a value: the field is taken away."""

_MANIFEST: dict[str, Any] = {
    "apiVersion": "trainingrun.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "small"},
    "spec": {
        "task": "pretrain",
        "model": {
            "init": "Config",
            "config": {
                "model_type": "llama",
                "hidden_size": 128,
                "intermediate_size": 384,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 256,
            },
            "tokenizer": {"train": {"vocabularySize": 1024}},
        },
        "data": {"sources": [{"name": "stdlib", "uri": "python-stdlib:train", "format": "Text"}]},
        "training": {
            "duration": {"steps": 300},
            "globalBatch": {"sequences": 32},
            "sequenceLength": 128,
            "optimizer": {"learningRate": 0.005},
        },
        "scale": {"minNodes": 1, "maxNodes": 2},
        "resources": {"perNode": {"cpu": "1", "memory": "4Gi"}},
        "checkpoint": {"location": {"uri": "file:///data/checkpoints"}},
        "output": {"uri": "file:///data/model"},
    },
}


def manifest(*changes: tuple[str, Any]) -> dict[str, Any]:
    """A valid manifest with each (path, value) set; a path is `spec/data/sources/0/uri`."""
    built = copy.deepcopy(_MANIFEST)
    for path, value in changes:
        _put(built, path, value)
    return built


_POD_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"cost-centre": "nlp"}, "annotations": {"example.com/owner": "team-a"}},
    "spec": {
        "serviceAccountName": "trainer",
        "nodeSelector": {"pool": "train"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": {"matchLabels": {"noisy": "true"}},
                    }
                ]
            },
        },
        "priorityClassName": "train",
        "schedulerName": "other-scheduler",
        "runtimeClassName": "nvidia",
        "imagePullSecrets": [{"name": "registry"}],
        "terminationGracePeriodSeconds": 60,
        "securityContext": {"runAsUser": 1000, "supplementalGroups": [2000]},
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "10Gi"}}],
        "containers": [
            {
                "name": "trainer",
                "image": "example.com/trainer:2",
                "imagePullPolicy": "Always",
                "env": [
                    {"name": "NCCL_DEBUG", "value": "WARN"},
                    {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                ],
                "envFrom": [{"secretRef": {"name": "more"}}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                "securityContext": {"readOnlyRootFilesystem": False},
            }
        ],
    },
}


def a_pod_template(*changes: tuple[str, Any]) -> dict[str, Any]:
    """A right `spec.podTemplate` that says something of everything; paths as in `manifest`."""
    built = copy.deepcopy(_POD_TEMPLATE)
    for path, value in changes:
        _put(built, path, value)
    return built


def refusal(*changes: tuple[str, Any], base_dir: Path | None = BASE) -> InvalidManifest:
    with pytest.raises(InvalidManifest) as caught:
        parse(manifest(*changes), base_dir)
    return caught.value


def only_error(*changes: tuple[str, Any], base_dir: Path | None = BASE) -> FieldError:
    """The one error that the changed manifest is refused with."""
    errors = refusal(*changes, base_dir=base_dir).errors
    assert len(errors) == 1, [str(error) for error in errors]
    return errors[0]


def _put(holder: Any, path: str, value: Any) -> None:
    value = value if value is REMOVED else copy.deepcopy(value)  # a further change must not reach into it
    *parents, last = path.split("/")
    for key in parents:
        holder = holder[int(key)] if isinstance(holder, list) else holder.setdefault(key, {})
    if value is REMOVED:
        del holder[int(last) if isinstance(holder, list) else last]
    else:
        holder[int(last) if isinstance(holder, list) else last] = value
