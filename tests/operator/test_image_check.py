"""How the images are checked: the container is as strict as a restricted pod, and a mark is worth what it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tools import check_images, container_python
from tools.container_python import Container

from trainingrun.protocol import names

AGENT = {
    names.ENV_SPEC_FILE: "/state/pod/spec.json",
    names.ENV_TERMINATION_LOG: "/state/pod/termination.json",
    names.ENV_LOG_DIR: "/state/logs",
    names.ENV_SNAPSHOT_DIR: "/dev/shm/run/pod",
    names.ENV_CACHE_DIR: "/state/cache",
}


def specification(environment: dict[str, str]) -> dict[str, Any]:
    container = Container("/rootfs", {"PATH": "/image/bin"}, 65532, "/scratch", writable=("/out",))
    return container_python.specification(container, ["python", "-V"], environment, Path("/scratch/hosts"))


def test_the_container_is_as_strict_as_a_restricted_pod() -> None:
    made = specification({})
    assert made["root"] == {"path": "/rootfs", "readonly": True}
    assert made["process"]["user"] == {"uid": 65532, "gid": 65532}
    assert made["process"]["capabilities"] == {}
    assert made["process"]["noNewPrivileges"] is True
    assert {"type": "pid"} in made["linux"]["namespaces"]


def test_an_agent_finds_what_a_kubelet_mounts_and_can_write_only_where_it_must() -> None:
    binds = {item["destination"]: item for item in specification(AGENT)["mounts"] if item["type"] == "bind"}
    writable = {path for path, item in binds.items() if "rw" in item["options"]}
    assert writable == {"/out", *(path for name, path in AGENT.items() if name != names.ENV_SPEC_FILE)}
    assert {path for path, item in binds.items() if "ro" in item["options"]} == {
        "/state/pod/spec.json",
        "/etc/hosts",
    }


def test_the_image_keeps_its_own_paths_and_the_agent_its_own_variables() -> None:
    environment = specification({**AGENT, "PATH": "/host/bin", "PYTHONPATH": "/host"})["process"]["env"]
    assert "PATH=/image/bin" in environment
    assert f"{names.ENV_LOG_DIR}=/state/logs" in environment
    assert not [item for item in environment if item.startswith("PYTHONPATH")]


def test_a_container_is_kept_as_it_was_given(tmp_path: Path) -> None:
    container = Container("/rootfs", {"A": "b"}, 1, "/scratch", readable=("/x",))
    container_python.save(container, tmp_path / "c.json")
    loaded = container_python.load(tmp_path / "c.json")
    assert (loaded.rootfs, loaded.environment, list(loaded.readable)) == ("/rootfs", {"A": "b"}, ["/x"])


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of just what is named as input of an image."""
    for kind in check_images.KINDS:
        for name in (kind.dockerfile, *check_images.COMMON, *kind.inputs, *check_images.CHECK):
            path = tmp_path / name
            source = check_images.ROOT / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                path.mkdir(exist_ok=True)
                (path / "code.py").write_text("1")
            elif not path.exists():
                path.write_text("1")
    monkeypatch.setattr(check_images, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "of"),
    [
        ("trainer_image/trainer/code.py", ["trainer"]),
        ("constraints/trainer.txt", ["trainer"]),
        ("operator/trainingrun/code.py", ["operator"]),
        ("operator/Dockerfile", ["operator"]),
        ("operator/trainingrun/protocol/code.py", ["operator", "trainer"]),
        ("pyproject.toml", ["operator", "trainer"]),
        ("tools/check_images.py", ["operator", "trainer"]),
    ],
)
def test_an_image_is_checked_again_when_what_is_in_it_changed(
    checkout: Path, changed: str, of: list[str]
) -> None:
    before = {kind.name: check_images.key(kind) for kind in check_images.KINDS}
    (checkout / changed).write_text("2")
    after = {kind.name: check_images.key(kind) for kind in check_images.KINDS}
    assert [name for name in before if before[name] != after[name]] == of


def test_byte_code_and_other_files_change_nothing(checkout: Path) -> None:
    before = {kind.name: check_images.key(kind) for kind in check_images.KINDS}
    cache = checkout / "operator" / "trainingrun" / "__pycache__"
    cache.mkdir()
    (cache / "code.pyc").write_text("2")
    (checkout / "README.md").write_text("2")
    assert {kind.name: check_images.key(kind) for kind in check_images.KINDS} == before


@pytest.mark.parametrize("kind", check_images.KINDS, ids=lambda kind: kind.name)
def test_everything_that_a_dockerfile_copies_decides_the_mark(kind: check_images.Kind) -> None:
    named = {*check_images.COMMON, *kind.inputs}
    lines = (check_images.ROOT / kind.dockerfile).read_text().splitlines()
    copied = {word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert copied
    assert all(any(word == name or word.startswith(f"{name}/") for name in named) for word in copied)


@pytest.mark.parametrize("kind", check_images.KINDS, ids=lambda kind: kind.name)
def test_an_image_starts_as_the_user_of_restricted_pods_without_a_builder(kind: check_images.Kind) -> None:
    text = (check_images.ROOT / kind.dockerfile).read_text()
    assert "\nUSER 65532:65532\n" in text
    assert "pip uninstall" in text
    assert "--mount" not in text  # not every builder has it
