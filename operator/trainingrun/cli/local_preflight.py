"""What is checked before a local run starts anything: the manifest, a plan, the machine, and what is there
already.

Everything wrong is one clear message with field, value and fix (UserError). Nothing here starts a process;
only `forget` removes files, and only those that this very run wrote.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainingrun.api import uris
from trainingrun.api.claims import claim_uses
from trainingrun.api.constants import ConditionType
from trainingrun.api.errors import CliExit, FieldError, InvalidManifest, UserError
from trainingrun.api.load import check_source_config, parse, read_manifest, require_files, resolve
from trainingrun.api.quantity import accelerator, parse_bytes
from trainingrun.cli.checkpoint_files import EXPORT_SOURCE_FILE, exported_by
from trainingrun.cli.report import condition
from trainingrun.cluster.local.store import Store
from trainingrun.planner.inputs import planner_inputs
from trainingrun.planner.search import plan
from trainingrun.ports import RunObject
from trainingrun.protocol.names import OWNER_FILE

FROZEN = ("task", "model", "data", "training", "resources", "parallelism", "output")
"""Blocks that cannot change once a run exists (the API server enforces the same by CEL)."""
WRITABLE = "choose a folder that can be made and written to"


class Refused(UserError):
    """What was asked for cannot be done as things are; nothing was started."""

    exit_code = CliExit.BAD_INPUT


@dataclass(frozen=True)
class Request:
    """A checked run, ready to be applied."""

    name: str
    manifest: dict[str, Any]  # as the user wrote it, with absolute paths
    spec: dict[str, Any]  # resolved
    nodes: int

    @property
    def location(self) -> Path | None:
        """None: a bucket, which only the trainer can look into."""
        path = uris.file_path(self.spec["checkpoint"]["location"]["uri"])
        return Path(path) if path else None

    @property
    def output(self) -> Path | None:
        path = uris.file_path(self.spec["output"]["uri"] or "") if self.spec["output"] else None
        return Path(path) if path else None


def read_request(file: Path, base_dir: Path, nodes: int | None) -> Request:
    """Read, check and plan. Relative file:// paths start at `base_dir`. Raises UserError."""
    manifest = read_manifest(file)
    run = parse(manifest, base_dir, str(file))
    spec = resolve(run, base_dir)
    refuse_cluster_only(spec)
    require_files(spec)
    check_source_config(spec)
    scale = spec["scale"]
    count = scale["maxNodes"] if nodes is None else nodes
    if count < scale["minNodes"]:
        fix = f"use --nodes {scale['minNodes']} or more, or lower spec.scale.minNodes"
        problem = f"{count}, but spec.scale.minNodes is {scale['minNodes']}: the run would wait for ever"
        raise InvalidManifest((FieldError("--nodes", nodes, problem, fix),))
    check_accelerators(spec["resources"]["perNode"], count, present=accelerators_here)
    model, training, inventory = planner_inputs(spec)
    plan(model, training, replace(inventory, max_nodes=max(inventory.min_nodes, inventory.max_nodes)))
    return Request(run.metadata.name, absolute_paths(manifest, base_dir), spec, count)


def refuse_cluster_only(spec: Mapping[str, Any]) -> None:
    """Refuse what acts only where there are pods and volume claims; ignoring it would train something else."""
    errors = [
        FieldError(
            use.field,
            use.name,
            f"claim {use.name}: this machine has no volume claims",
            "use a file:// folder",
        )
        for use in claim_uses({**spec, "podTemplate": None})
    ]
    if spec.get("podTemplate") is not None:
        message = "there are no pods in a local run, so it would do nothing"
        errors.append(
            FieldError("spec.podTemplate", None, message, "remove it, or apply the run to a cluster")
        )
    if errors:
        raise InvalidManifest(tuple(errors))


def absolute_paths(value: Any, base_dir: Path) -> Any:
    """The manifest with every `uri: file://…` made absolute: the controller has no folder of its own."""
    if isinstance(value, Mapping):
        return {
            key: uris.absolute(item, base_dir)
            if key == "uri" and isinstance(item, str)
            else absolute_paths(item, base_dir)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [absolute_paths(item, base_dir) for item in value]
    return value


def check_accelerators(per_node: Mapping[str, str], nodes: int, present: Any) -> None:
    """Refuse an accelerator that this machine does not have. It is never replaced by a CPU."""
    wanted = accelerator(per_node)
    if wanted is None:
        return
    resource, count = wanted
    has: int = present(resource)
    if count * nodes <= has:
        return
    there = "none" if has == 0 else f"{has} in all"
    need = f"{resource} {count}" + (f" on each of {nodes} nodes" if nodes > 1 else "")
    fix = "remove it and set processesPerNode to train on CPUs"
    if has >= count:
        fix = f"use --nodes {has // count}"
    error = FieldError("spec.resources.perNode", dict(per_node), f"{need}, but this machine has {there}", fix)
    raise InvalidManifest((error,))


def accelerators_here(resource: str) -> int:
    """How many of them the kernel shows on this machine."""
    if resource == "nvidia.com/gpu":
        return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))
    if resource == "amd.com/gpu":
        found = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
        return sum(path.read_text().strip() not in ("", "0") for path in found)
    return 0


def memory_note(spec: Mapping[str, Any], nodes: int) -> str:
    """A warning when the nodes are declared larger than the machine; empty otherwise."""
    declared = parse_bytes(spec["resources"]["perNode"].get("memory", "0")) * nodes
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if declared <= there:
        return ""
    return (
        f"note: {nodes} nodes of {spec['resources']['perNode']['memory']} are "
        f"{declared / 2**30:.1f} GiB of memory, and this machine has {there / 2**30:.1f} GiB"
    )


def is_over(run: RunObject) -> str:
    """Complete or Failed when the run ended; else empty."""
    kinds = (ConditionType.COMPLETE, ConditionType.FAILED)
    return next((str(kind) for kind in kinds if condition(run.status, kind).get("status") == "True"), "")


def check_existing(request: Request, run: RunObject | None) -> bool:
    """Whether an unfinished run of that name is continued. Raises Refused when the two cannot be one run."""
    if run is None:
        return False
    if over := is_over(run):
        raise Refused(
            f"run {request.name} is {over.lower()} already\n"
            "  hint: --fresh removes its state and begins anew; another metadata.name keeps it"
        )
    if changed := _changed_field(run, request):
        raise Refused(
            f"{changed} differs from the run {request.name} that is there, unfinished; it cannot be changed\n"
            "  hint: --fresh begins anew; or change it back to continue"
        )
    return True


def _changed_field(run: RunObject, request: Request) -> str:
    old = resolve(parse(run.manifest, None), None)
    new = request.spec
    for block in FROZEN:
        if old.get(block) != new.get(block):
            return f"spec.{block}"
    same = old["checkpoint"]["location"] == new["checkpoint"]["location"]
    return "" if same else "spec.checkpoint.location"


def check_places(request: Request, run_uid: str) -> None:
    """Refuse a checkpoint location of another run, an output folder that is not an exported model, and both where
    nothing can be written.
    """
    errors = []
    uri = request.spec["checkpoint"]["location"]["uri"]
    location = request.location
    if location is not None and (problem := _why_not_writable(location)):
        errors.append(FieldError("spec.checkpoint.location.uri", uri, f"{uri}: {problem}", WRITABLE))
    owner = owner_of(location) if location is not None else None
    if owner is not None and owner["runUid"] != run_uid:
        message = f"{uri} holds the checkpoints of run {owner['runName']} (uid {owner['runUid']})"
        fix = f"choose another location, or remove {location}"
        if owner["runName"] == request.name:
            fix += "; that earlier run's state is not in this state directory, so --fresh does not touch it"
        errors.append(FieldError("spec.checkpoint.location.uri", uri, message, fix))
    output, uri = request.output, request.spec["output"]["uri"] if request.spec["output"] else ""
    if output is not None and (problem := _why_not_writable(output.parent)):
        errors.append(FieldError("spec.output.uri", uri, f"{uri}: {problem}", WRITABLE))
    elif output is not None and output.exists() and not _is_replaceable(output):
        message = f"{uri} exists and is not a model that a run exported"
        fix = "choose a folder that does not exist yet; the export replaces the whole folder"
        errors.append(FieldError("spec.output.uri", uri, message, fix))
    if errors:
        raise InvalidManifest(tuple(errors))


def _why_not_writable(folder: Path) -> str:
    """Why `folder` can be neither made nor written to; "" when nothing is seen that speaks against it."""
    there = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 - never raises
    if not there.is_dir():
        return f"{there} is a file, not a folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} may not be written to"


def _is_replaceable(output: Path) -> bool:
    return output.is_dir() and ((output / EXPORT_SOURCE_FILE).exists() or not any(output.iterdir()))


def owner_of(location: Path) -> dict[str, str] | None:
    """The present owner of a checkpoint location: {"runUid", "runName"}; None for a fresh one."""
    later = sorted(location.glob("owner.[0-9]*.json"))  # each adoption adds a file
    file = later[-1] if later else location / OWNER_FILE
    try:
        owner = json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}\n  hint: check the path") from None
    except ValueError:
        raise Refused(f"{file} is not JSON\n  hint: was it edited by hand? remove it if so") from None
    return {"runUid": str(owner.get("runUid", "")), "runName": str(owner.get("runName", ""))}


def forget(store: Store, run: RunObject) -> list[str]:
    """Remove a run: its local state, and its checkpoints and model where their marks name this very run.

    Returns what was removed. No process of the run may be alive.
    """
    removed = [str(place) for place in _written_by(run)]
    for place in removed:
        shutil.rmtree(place)
    store.remove_run(run.name)
    return [*removed, str(store.layout.run(run.name))]


def _written_by(run: RunObject) -> Iterator[Path]:
    """The checkpoint location and the exported model, each only with the mark of this very run."""
    try:
        spec = resolve(parse(run.manifest, None), None)
    except InvalidManifest:  # of a version that allowed something else: then nothing can be proven
        return
    location = uris.file_path(spec["checkpoint"]["location"]["uri"])
    owner = owner_of(Path(location)) if location else None
    if location and owner is not None and owner["runUid"] == run.uid:
        yield Path(location)
    output = uris.file_path(spec["output"]["uri"] or "") if spec["output"] else None
    if output and exported_by(Path(output)) == run.uid:
        yield Path(output)
