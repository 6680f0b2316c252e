"""`trainingrun checkpoint` as a user meets it: what is listed, what is found damaged, what may be removed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.operator.checkpoint_builders import a_checkpoint, a_location
from typer.testing import CliRunner, Result

from trainingrun.api.errors import CliExit
from trainingrun.cli.main import app

ROOT = Path(__file__).parents[2]


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(
        app, ["checkpoint", *(str(argument) for argument in arguments)], env={"NO_COLOR": "1"}
    )


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Steps 10, 20 and 30 of two epochs; 20 is pinned, and a save of step 40 did not end."""
    place = a_location(tmp_path / "c")
    a_checkpoint(place, 10)
    a_checkpoint(place, 20)
    a_checkpoint(place, 30, epoch=2)
    (place / "pins").mkdir()
    (place / "pins" / "step-00000020.e0001").touch()
    (place / "step-00000040.e0002").mkdir()
    return place


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)


def test_the_list_says_what_is_whole_what_is_kept_and_which_is_the_newest(location: Path) -> None:
    result = call("ls", location)
    assert result.exit_code == CliExit.OK, result.stderr
    header, *rows = [line.split() for line in result.stdout.splitlines()]
    assert header == ["NAME", "STEP", "EPOCH", "TOKENS", "SIZE", "AGE", "STATE", "KEPT"]
    assert [(row[0], row[-2], row[-1]) for row in rows] == [
        ("step-00000040.e0002", "Unfinished", "-"),
        ("step-00000010.e0001", "Whole", "-"),
        ("step-00000020.e0001", "Whole", "pinned"),
        ("step-00000030.e0002", "Whole", "-"),
    ]
    assert result.stderr.strip() == "of run demo; the newest whole checkpoint: step-00000030.e0002"


def test_the_list_as_data_has_digests_and_problems(location: Path) -> None:
    flip(location / "step-00000030.e0002" / "manifest.json")
    data = json.loads(call("ls", location, "-o", "json").stdout)
    assert data["newest"] == "step-00000020.e0001"
    states = {
        one["name"]: (one["state"], bool(one["digest"]), bool(one["problem"])) for one in data["checkpoints"]
    }
    assert states["step-00000030.e0002"] == ("Damaged", False, True)
    assert states["step-00000020.e0001"] == ("Whole", True, False)
    assert yaml.safe_load(call("ls", location, "-o", "yaml").stdout) == data


def test_a_newer_epoch_at_a_lower_step_is_the_newest(tmp_path: Path) -> None:
    place = a_location(tmp_path / "c")
    a_checkpoint(place, 90, epoch=1)
    a_checkpoint(place, 50, epoch=2)
    assert json.loads(call("ls", place, "-o", "json").stdout)["newest"] == "step-00000050.e0002"


def test_verify_reads_everything_and_names_what_is_damaged(location: Path) -> None:
    assert call("verify", location).exit_code == CliExit.OK
    flip(location / "step-00000020.e0001" / "__1_0.distcp")
    os.truncate(location / "step-00000030.e0002" / "__0_0.distcp", 100)
    (location / "step-00000030.e0002" / "__1_0.distcp").unlink()
    result = call("verify", location)
    assert result.exit_code == CliExit.RUN_FAILED
    assert "step-00000010.e0001  Verified" in result.stdout
    assert "step-00000020.e0001  Damaged" in result.stdout
    assert "  __1_0.distcp: model.1.0: its sha256 does not match the manifest" in result.stdout
    assert "  __0_0.distcp: 100 bytes, but 1000 were written" in result.stdout
    assert "  __1_0.distcp: is gone" in result.stdout
    assert "2 checkpoints cannot be used: step-00000020.e0001, step-00000030.e0002" in result.stderr
    assert call("verify", location, "10").exit_code == CliExit.OK
    assert call("verify", location, "40").exit_code == CliExit.RUN_FAILED


@pytest.mark.parametrize("state_format", [1, 2])
@pytest.mark.parametrize("file", ["__0_0.distcp", "__1_0.distcp", "manifest.json"])
def test_verify_finds_any_flipped_bit(tmp_path: Path, file: str, state_format: int) -> None:
    place = a_location(tmp_path / "c")
    path = a_checkpoint(place, 10, state_format=state_format) / file
    good = path.read_bytes()
    for at in range(0, len(good), 37):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        assert call("verify", place).exit_code == CliExit.RUN_FAILED, f"byte {at}"
    path.write_bytes(good)
    assert call("verify", place).exit_code == CliExit.OK


def test_removing_takes_what_was_named_and_never_by_accident_what_a_run_goes_on_from(location: Path) -> None:
    result = call("rm", location, "10", "step-00000040.e0002")
    assert result.exit_code == CliExit.OK, result.stderr
    assert result.stdout.split() == ["step-00000010.e0001", "step-00000040.e0002"]
    for name, said in (("20", "is pinned"), ("30", "is the newest whole checkpoint")):
        refused = call("rm", location, name)
        assert refused.exit_code == CliExit.BAD_INPUT
        assert said in refused.stderr
        assert "hint: " in refused.stderr
    assert sorted(path.name for path in location.glob("step-*")) == [
        "step-00000020.e0001",
        "step-00000030.e0002",
    ]
    assert call("rm", location, "20", "30", "--force").exit_code == CliExit.OK
    assert list(location.glob("*step-*")) == []


def test_a_removal_takes_the_manifest_first(location: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "rename", die)
    assert call("rm", location, "10").exit_code == CliExit.BAD_INPUT
    assert json.loads(call("ls", location, "-o", "json").stdout)["checkpoints"][0] == {
        "name": "step-00000010.e0001",
        "step": 10,
        "epoch": 1,
        "state": "Unfinished",
        "pinned": False,
        "savedAt": None,
        "tokens": None,
        "bytes": None,
        "digest": None,
        "parent": None,
        "problem": "it has no manifest",
    }


def test_a_location_is_named_by_folder_uri_or_manifest(location: Path, tmp_path: Path) -> None:
    document = yaml.safe_load((ROOT / "tests" / "golden" / "run.yaml").read_text())
    document["spec"]["checkpoint"]["location"]["uri"] = f"file://{location}"
    manifest = tmp_path / "run.yaml"
    manifest.write_text(yaml.safe_dump(document))
    listed = call("ls", location, "-o", "json").stdout
    assert call("ls", location.as_uri(), "-o", "json").stdout == listed
    assert call("ls", manifest, "-o", "json").stdout == listed


@pytest.mark.parametrize(
    ("place", "said", "code"),
    [
        ("/nowhere/at/all", "No such file or directory", CliExit.BAD_INPUT),
        ("s3://bucket/run", "s3://bucket/run: is in a bucket", CliExit.BAD_INPUT),
        ("pvc://claim/run", "pvc://claim/run: is in a volume of the cluster", CliExit.BAD_INPUT),
    ],
)
def test_a_place_that_cannot_be_read_gets_one_clear_error(place: str, said: str, code: CliExit) -> None:
    result = call("ls", place)
    assert result.exit_code == code
    assert said in result.stderr
    assert "hint: " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_name_that_is_not_there_is_missing_and_one_that_fits_two_is_asked_for(location: Path) -> None:
    assert call("verify", location, "99").exit_code == CliExit.MISSING
    a_checkpoint(location, 30, epoch=3)
    result = call("verify", location, "30")
    assert result.exit_code == CliExit.BAD_INPUT
    assert "step-00000030.e0002, step-00000030.e0003" in result.stderr


def test_an_export_without_the_trainer_says_how_it_is_done(location: Path, tmp_path: Path) -> None:
    result = call("export", location, "--to", tmp_path / "m", "--trainer-python", "")
    assert result.exit_code == CliExit.BAD_INPUT
    assert "--trainer-python (not given)" in result.stderr
    assert (
        f"python -m trainer.export --location file://{location} --checkpoint step-00000030.e0002"
        in result.stderr
    )


def test_the_trainer_is_asked_to_export_and_its_refusal_is_told(location: Path, tmp_path: Path) -> None:
    trainer = tmp_path / "python"
    trainer.write_text(
        '#!/bin/sh\nif [ "$6" = step-00000020.e0001 ]; then echo no model >&2; exit 1; fi\necho "$@" > "$8"\n'
    )
    trainer.chmod(0o755)
    result = call("export", location, "--to", tmp_path / "m", "--trainer-python", trainer)
    assert result.exit_code == CliExit.OK, result.stderr
    assert result.stdout.strip() == str(tmp_path / "m")
    assert (tmp_path / "m").read_text().split()[:2] == ["-m", "trainer.export"]
    refused = call("export", location, "20", "--to", tmp_path / "n", "--trainer-python", trainer)
    assert refused.exit_code == CliExit.RUN_FAILED
    assert "the export failed: no model" in refused.stderr


def test_the_model_of_another_run_is_replaced_only_by_force(location: Path, tmp_path: Path) -> None:
    trainer = tmp_path / "python"
    trainer.write_text("#!/bin/sh\n")
    trainer.chmod(0o755)
    target = tmp_path / "m"
    target.mkdir()
    arguments = ("export", location, "--to", target, "--trainer-python", trainer)
    (target / "source.json").write_text(json.dumps({"runUid": "somebody-else"}))
    refused = call(*arguments)
    assert refused.exit_code == CliExit.BAD_INPUT
    assert f"--to {target}: the model of another run is there" in refused.stderr
    assert call(*arguments, "--force").exit_code == CliExit.OK
    manifest = json.loads((location / "step-00000030.e0002" / "manifest.json").read_text())
    (target / "source.json").write_text(json.dumps({"runUid": manifest["runUid"]}))
    assert call(*arguments).exit_code == CliExit.OK


def test_a_relative_location_is_exported_from_where_it_is(
    location: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(location.parent)
    for place in (location.name, f"file://{location.name}"):
        told = call("export", place, "--to", tmp_path / "m", "--trainer-python", "")
        assert f"--location file://{location} " in told.stderr


def test_the_commands_need_no_torch(location: Path) -> None:
    code = (
        "import sys\nfrom trainingrun.cli.main import app\n"
        f"app(['checkpoint', 'verify', {str(location)!r}], standalone_mode=False)\n"
        "assert 'torch' not in sys.modules and 'trainer' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=60
    )
