"""The volume claims (PersistentVolumeClaims) that a run names: by `pvc://claim/path`, and in its pod template.

Pure; no volume is looked at. Used by the control loop, which checks that they are there and may be used by all
nodes, and by the pod template, which mounts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainingrun.api.uris import claim_of


@dataclass(frozen=True)
class ClaimUse:
    """A claim, once for a run: when a run both reads and writes it, the field is the first that writes."""

    name: str
    field: str  # where the manifest names it: spec.checkpoint.location.uri
    writes: bool  # False: the run only reads from it


def claims_of(spec: Mapping[str, Any]) -> tuple[ClaimUse, ...]:
    """Every claim of a spec in API form (resolved or not), each once, in the order of the manifest."""
    found: dict[str, ClaimUse] = {}
    for use in claim_uses(spec):
        known = found.get(use.name)
        if known is None or (use.writes and not known.writes):
            found[use.name] = use
    return tuple(found.values())


def mounted_claims(spec: Mapping[str, Any]) -> tuple[ClaimUse, ...]:
    """Those that `pvc://` URIs name: the operator mounts them. The pod template's volumes mount themselves."""
    return claims_of({**spec, "podTemplate": None})


def claim_uses(spec: Mapping[str, Any]) -> Iterator[ClaimUse]:
    """Every field that names a claim; the same claim as often as it is named."""
    data = _mapping(spec.get("data"))
    for block in ("sources", "validation"):
        for index, source in enumerate(data.get(block) or ()):
            yield from _of_uri(source, f"spec.data.{block}[{index}].uri", writes=False)
    for block in ("source", "tokenizer"):
        place = _mapping(spec.get("model")).get(block)
        yield from _of_uri(place, f"spec.model.{block}.uri", writes=False)
    location = _mapping(spec.get("checkpoint")).get("location")
    yield from _of_uri(location, "spec.checkpoint.location.uri", writes=True)
    yield from _of_uri(spec.get("output"), "spec.output.uri", writes=True)
    pod = _mapping(_mapping(spec.get("podTemplate")).get("spec"))
    for index, volume in enumerate(pod.get("volumes") or ()):
        claim = _mapping(_mapping(volume).get("persistentVolumeClaim"))
        if claim.get("claimName"):
            field = f"spec.podTemplate.spec.volumes[{index}].persistentVolumeClaim.claimName"
            yield ClaimUse(claim["claimName"], field, writes=not claim.get("readOnly"))


def _of_uri(place: Any, field: str, writes: bool) -> Iterator[ClaimUse]:
    uri = _mapping(place).get("uri")
    claim = claim_of(uri) if isinstance(uri, str) else None
    if claim is not None:
        yield ClaimUse(claim.name, field, writes)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
