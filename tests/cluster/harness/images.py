"""The images of the test cluster as one docker-archive, which containerd imports without a registry.

Trainer and operator images differ only in their configuration: one layer serves all three. The pause image is one
static program. No layer is ever pulled.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness import layout
from tools import base_image, cache

PAUSE_SOURCE = """
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
  signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, reap);
  for (;;) pause();
}
"""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Image:
    tag: str
    layer: Path
    config: dict[str, Any]


def python_config(environment: str) -> dict[str, Any]:
    """Configuration of an image whose `python` is that of the mounted `environment`, or Debian's for ""."""
    home = layout.IN_CONTAINERS
    path = f"{home / environment / 'bin'}:{SYSTEM_PATH}" if environment else SYSTEM_PATH
    sources = f"{home}/src/operator:{home}/src/trainer_image"
    variables = {
        "PATH": path,
        "PYTHONPATH": sources if environment else "",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "LANG": "C.UTF-8",
        # The root is read-only in pods that are restricted; /tmp is what they mount to write to.
        "HOME": "/tmp",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {
        "User": f"{base_image.USER}:{base_image.USER}" if environment else "",
        "Env": [f"{name}={value}" for name, value in variables.items() if value],
        "Cmd": ["python3"],
        "WorkingDir": "/tmp" if environment else "/",
    }


def pause_layer() -> Path:
    tar = cache.folder("images") / f"pause-{cache.key(PAUSE_SOURCE)}.tar"
    if tar.exists():
        return tar
    with cache.publishing(tar) as draft:
        source, program = draft.with_suffix(".c"), draft.with_suffix(".bin")
        source.write_text(PAUSE_SOURCE)
        cache.run("gcc", "-static", "-Os", "-s", "-o", program, source)
        with tarfile.open(draft, "w") as layer:
            entry = tarfile.TarInfo("pause")
            entry.mode, entry.size = 0o755, program.stat().st_size
            with program.open("rb") as content:
                layer.addfile(entry, content)
        source.unlink()
        program.unlink()
    return tar


def archive() -> Path:
    """The docker-archive of all images."""
    base, pause = base_image.layer(), pause_layer()
    images = (
        Image(layout.PAUSE_IMAGE, pause, {"Entrypoint": ["/pause"], "User": "65535:65535"}),
        Image(layout.BASE_IMAGE, base, python_config("")),
        Image(layout.TRAINER_IMAGE, base, python_config("trainer-env")),
        Image(layout.OPERATOR_IMAGE, base, python_config("operator-env")),
    )
    wanted = [(image.tag, image.layer.name, image.config) for image in images]
    target = cache.folder("images") / f"all-{cache.key(json.dumps(wanted))}.tar"
    if not target.exists():
        cache.say("packing the images")
        with cache.publishing(target) as draft, tarfile.open(draft, "w") as out:
            write(out, images)
    return target


def write(out: tarfile.TarFile, images: tuple[Image, ...]) -> None:
    """Writes layers, configurations and the manifest, as `docker save` does."""
    digests: dict[Path, str] = {}
    manifest = []
    for image in images:
        if image.layer not in digests:
            with image.layer.open("rb") as content:
                digests[image.layer] = hashlib.file_digest(content, "sha256").hexdigest()
            out.add(image.layer, arcname=f"{digests[image.layer]}.tar")
        digest = digests[image.layer]
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "created": "2025-01-01T00:00:00Z",
                "config": image.config,
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
                "history": [{"created": "2025-01-01T00:00:00Z", "created_by": "test cluster"}],
            }
        ).encode()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        _add(out, name, config)
        manifest.append({"Config": name, "RepoTags": [image.tag], "Layers": [f"{digest}.tar"]})
    _add(out, "manifest.json", json.dumps(manifest).encode())


def _add(out: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    out.addfile(entry, io.BytesIO(data))
