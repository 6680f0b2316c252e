"""Builds the images and runs them: `make check-images`.

The trainer image trains three steps and exports a model, the operator image runs its programs; each as its own
user, with a read-only root and no rights. An image is checked once for each content (its sources, versions and
Dockerfile, and this check): the marks are outside the checkout. Needs root, for mounts; what it builds is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tools import base_image, cache, container_python, image_store
from tools.container_python import Container
from tools.errors import ToolError
from tools.image_store import Built, Store

ROOT = Path(__file__).resolve().parent.parent
STEPS = 3
RUN_SECONDS = 900.0
TOP_LAYERS_LIMIT = 5 << 20  # bytes of everything above the dependencies: what a change of source moves
COMMON = (
    ".dockerignore",
    "pyproject.toml",
    "operator/trainingrun/__init__.py",
    "operator/trainingrun/protocol",
)
CHECK = ("tools/check_images.py", "tools/container_python.py", "tools/image_store.py")


class Failed(Exception):
    """An image does not do what it must; the text is what was seen."""


@dataclass(frozen=True)
class Kind:
    name: str
    dockerfile: str
    inputs: tuple[str, ...]  # files and folders that decide the image
    check: Callable[[Built, Path], str]  # (image, scratch) -> what was seen


def key(kind: Kind) -> str:
    """Of everything that decides this image and what is done with it."""
    parts: list[str | bytes] = [base_image.SUITE, base_image.INCLUDE, base_image.RECIPE]
    for name in (kind.dockerfile, *COMMON, *kind.inputs, *CHECK):
        path = ROOT / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                parts += [str(file.relative_to(ROOT)), file.read_bytes()]
    return cache.key(*parts)


# the trainer


def check_trainer(image: Built, scratch: Path) -> str:
    """The whole local line with one node, whose agent runs in a container of the image."""
    out = scratch / "out"
    out.mkdir()
    os.chown(out, image.user, image.user)
    manifest = three_steps(out)
    (scratch / "run.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    environment = in_container(image, scratch, writable=(str(out),))
    python = str(ROOT / "tools" / "container_python.py")
    command = [sys.executable, "-m", "trainingrun.cli", "local", "run", str(scratch / "run.yaml")]
    state = scratch / "state"
    report = execute(
        [*command, "--state", str(state), "--trainer-python", python, "-o", "json"], environment, logs=state
    )
    told = json.loads(report)
    if told.get("outcome") != "Complete" or told.get("step") != STEPS:
        raise Failed(f"the run is not complete after {STEPS} steps: {report}")
    model = out / "model"
    foreign = [str(path) for path in model.rglob("*") if path.stat().st_uid != image.user]
    if foreign or not (model / "model.safetensors").is_file():
        raise Failed(f"the exported model is not there, or not written by user {image.user}: {foreign}")
    loaded = execute([python, "-c", LOAD, str(model)], environment).strip()
    return f"trained {STEPS} steps and exported {loaded} parameters"


LOAD = (
    "import sys, transformers; "
    "model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1]); "
    "print(sum(item.numel() for item in model.parameters()))"
)


def three_steps(out: Path) -> dict[str, Any]:
    """The example that everybody sees first, cut short, with its files in `out`."""
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "pretrain-stdlib.yaml").read_text())
    spec = manifest["spec"]
    spec["training"]["duration"] = {"steps": STEPS}
    spec["scale"] = {"minNodes": 1, "maxNodes": 1}
    spec["data"].pop("validation", None)
    spec["checkpoint"]["location"]["uri"] = f"file://{out}/checkpoints"
    spec["output"]["uri"] = f"file://{out}/model"
    return manifest


# the operator


def check_operator(image: Built, scratch: Path) -> str:
    python = str(ROOT / "tools" / "container_python.py")
    example = str(ROOT / "examples" / "pretrain-stdlib.yaml")
    environment = in_container(image, scratch, readable=(example,))
    execute([python, "-m", "trainingrun.cli", "--help"], environment)
    execute([python, "-m", "trainingrun.cli", "plan", "-f", example, "-o", "json"], environment)
    for program in ("controller_main", "membership_main"):
        command = [python, "-m", f"trainingrun.cluster.kubernetes.{program}"]
        done = run(command, environment)  # everything is imported before the settings are read
        if done.returncode == 0 or "TRAININGRUN_OPERATOR_NAMESPACE is not set" not in done.stderr:
            raise Failed(f"{program} without settings ended with {done.returncode}: {done.stderr[-3000:]}")
    return "planned a run; controller and membership start, and miss their settings"


# both


def check_contents(image: Built, scratch: Path) -> None:
    """What must not be in an image, and what a program must not be able to write."""
    for tool in ("gcc", "cc", "g++", "go", "git"):
        if shutil.which(
            tool, path=":".join(f"{image.rootfs}{folder}" for folder in ("/usr/bin", "/usr/local/bin"))
        ):
            raise Failed(f"{image.name} has {tool}")
    if image.top_bytes > TOP_LAYERS_LIMIT:
        raise Failed(f"{image.name}: the layers above the dependencies are {image.top_bytes:,} bytes")
    environment = in_container(image, scratch)
    python = str(ROOT / "tools" / "container_python.py")
    seen = json.loads(execute([python, "-c", LOOK], environment))
    if seen != {"user": base_image.USER, "pid": 1, "root": "read-only", "capabilities": 0}:
        raise Failed(f"{image.name} does not run as a restricted pod: {seen}")


LOOK = """
import json, os
try:
    open("/opt/trainingrun/x", "w")
    root = "writable"
except OSError as error:
    root = "read-only" if error.errno == 30 else str(error)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"user": os.getuid(), "pid": os.getpid(), "root": root, "capabilities": int(status["CapEff"], 16)}))
"""


def in_container(
    image: Built, scratch: Path, writable: tuple[str, ...] = (), readable: tuple[str, ...] = ()
) -> dict[str, str]:
    """The environment in which container_python starts this image."""
    file = Path(tempfile.mkstemp(dir=scratch, suffix=".json")[1])
    container = Container(
        str(image.rootfs), image.environment, image.user, str(scratch / "containers"), writable, readable
    )
    container_python.save(container, file)
    return {**os.environ, container_python.ENV_CONTAINER: str(file)}


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )


def execute(command: list[str], environment: dict[str, str], logs: Path | None = None) -> str:
    """Its stdout. Raises Failed with the end of its stderr and of the logs below `logs`."""
    done = run(command, environment)
    if done.returncode == 0:
        return done.stdout
    files = sorted(logs.rglob("*.log")) if logs else []
    told = [f"--- {file.name}\n{file.read_text(errors='replace')[-2000:]}" for file in files]
    words = " ".join(command[:6])
    raise Failed("\n".join([f"{words} ended with {done.returncode}:", done.stderr[-3000:], *told]))


KINDS = (
    Kind(
        "operator",
        "operator/Dockerfile",
        ("constraints/operator.txt", "operator/trainingrun"),
        check_operator,
    ),
    Kind(
        "trainer",
        "trainer_image/Dockerfile",
        ("constraints/trainer.txt", "trainer_image/trainer", "examples/pretrain-stdlib.yaml"),
        check_trainer,
    ),
)


def check(kind: Kind, store: Store, scratch: Path) -> None:
    began = time.monotonic()
    cache.say(f"building the {kind.name} image")
    store.build(kind.name, kind.dockerfile, ROOT)
    built = time.monotonic()
    with store.mounted(kind.name) as image:
        try:
            check_contents(image, scratch)
            seen = kind.check(image, scratch)
        finally:
            end_containers(scratch / "containers")
    size = f"{image.total_bytes / 2**20:,.0f} MiB, of which {image.top_bytes / 2**20:.1f} MiB are ours"
    print(
        f"{kind.name} image: {seen}; {size}; built in {built - began:.0f} s, checked in "
        f"{time.monotonic() - built:.0f} s"
    )


def end_containers(folder: Path) -> None:
    """Those that outlived who started them."""
    runc = container_python.runc(folder)
    for name in cache.run(*runc, "list", "--quiet").split():
        cache.run(*runc, "delete", "--force", name)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.check_images", description=__doc__)
    parser.add_argument("images", nargs="*", help="only these: " + ", ".join(kind.name for kind in KINDS))
    parser.add_argument("--again", action="store_true", help="also what passed before with the same content")
    options = parser.parse_args()
    if unknown := set(options.images) - {kind.name for kind in KINDS}:
        parser.error(f"no such image: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was made is removed
    try:
        for kind in KINDS:
            if options.images and kind.name not in options.images:
                continue
            mark = cache.folder("images") / f"checked-{kind.name}-{key(kind)}"
            if mark.exists() and not options.again:
                print(f"{kind.name} image: passed before with the same content ({mark.read_text().strip()})")
                continue
            image_store.install()
            with cache.builder():
                base = base_image.layer()
            with image_store.scratch_folder() as scratch, image_store.opened(scratch, base) as store:
                check(kind, store, scratch)
            if mark.name.endswith(key(kind)):  # nobody changed it meanwhile
                mark.write_text(time.strftime("%Y-%m-%d %H:%M UTC\n", time.gmtime()))
    except (Failed, ToolError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        if hint := getattr(error, "hint", ""):
            print(f"hint: {hint}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
