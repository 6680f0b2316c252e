"""Which volume claims a run names, and whether it writes to them."""

from __future__ import annotations

from tests.operator.api_builders import BASE, manifest

from trainingrun.api.claims import ClaimUse, claim_uses, claims_of, mounted_claims
from trainingrun.api.load import parse, resolve

LOCATION, OUTPUT = "spec.checkpoint.location.uri", "spec.output.uri"
VALIDATION = {"name": "heldout", "uri": "pvc://corpus/heldout", "format": "Text"}


def test_a_run_on_files_names_no_claim() -> None:
    assert claims_of(manifest()["spec"]) == ()


def test_each_claim_is_found_once_with_the_first_field_that_writes_to_it() -> None:
    spec = manifest(
        ("spec/data/sources/0/uri", "pvc://corpus/train"),
        ("spec/data/validation", [VALIDATION]),
        ("spec/model/tokenizer", {"uri": "pvc://tokenizers/small"}),
        ("spec/checkpoint/location/uri", "pvc://trainingrun/checkpoints"),
        ("spec/output/uri", "pvc://trainingrun/models/small"),
    )["spec"]
    assert claims_of(spec) == (
        ClaimUse("corpus", "spec.data.sources[0].uri", writes=False),
        ClaimUse("tokenizers", "spec.model.tokenizer.uri", writes=False),
        ClaimUse("trainingrun", LOCATION, writes=True),
    )
    assert [use.field for use in claim_uses(spec)][-1] == OUTPUT


def test_a_claim_that_is_read_and_written_is_one_that_is_written() -> None:
    spec = manifest(("spec/data/sources/0/uri", "pvc://all/text"), ("spec/output/uri", "pvc://all/model"))[
        "spec"
    ]
    assert claims_of(spec) == (ClaimUse("all", OUTPUT, writes=True),)


def test_volumes_of_the_pod_template_count_but_mount_themselves() -> None:
    volumes = [
        {"name": "a", "persistentVolumeClaim": {"claimName": "extra"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "shared", "readOnly": True}},
        {"name": "c", "emptyDir": {}},
    ]
    spec = manifest(("spec/podTemplate/spec/volumes", volumes), ("spec/output/uri", "pvc://models/x"))["spec"]
    field = "spec.podTemplate.spec.volumes[{}].persistentVolumeClaim.claimName"
    assert claims_of(spec) == (
        ClaimUse("models", OUTPUT, writes=True),
        ClaimUse("extra", field.format(0), writes=True),
        ClaimUse("shared", field.format(1), writes=False),
    )
    assert [claim.name for claim in mounted_claims(spec)] == ["models"]


def test_a_resolved_spec_names_the_same_claims() -> None:
    written = manifest(
        ("spec/output/uri", "pvc://models.v2/x/"), ("spec/checkpoint/location/uri", "pvc://c/d")
    )
    resolved = resolve(parse(written, None), None)
    assert claims_of(resolved) == claims_of(written["spec"])
    assert resolved["output"]["uri"] == "pvc://models.v2/x/"
    assert resolve(parse(written, BASE), BASE) == resolved
