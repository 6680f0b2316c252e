"""Names that several programs must agree on: environment variables, derived object names, file names.

Imports nothing of ours. Child names are pure functions, so that creating twice is a conflict, never a duplicate.
"""

from __future__ import annotations

import re

GROUP = "trainingrun.dev"

# Environment of an agent (PID 1 of a worker pod).
ENV_RUN_NAME = "TRAININGRUN_RUN_NAME"
ENV_RUN_UID = "TRAININGRUN_RUN_UID"
ENV_POD_NAME = "TRAININGRUN_POD_NAME"
ENV_POD_UID = "TRAININGRUN_POD_UID"
ENV_NODE_NAME = "TRAININGRUN_NODE_NAME"
ENV_POD_ADDRESS = "TRAININGRUN_POD_ADDRESS"
ENV_SLOT = "TRAININGRUN_SLOT"
ENV_INCARNATION = "TRAININGRUN_INCARNATION"
ENV_PROCESSES = "TRAININGRUN_PROCESSES"
ENV_MEMBERSHIP_URL = "TRAININGRUN_MEMBERSHIP_URL"
ENV_SPEC_FILE = "TRAININGRUN_SPEC_FILE"  # JSON: the resolved spec, frozen in the revision
ENV_SNAPSHOT_DIR = "TRAININGRUN_SNAPSHOT_DIR"  # memory-backed; outlives the container, not the pod
ENV_TERMINATION_LOG = "TRAININGRUN_TERMINATION_LOG"
ENV_LOG_DIR = "TRAININGRUN_LOG_DIR"
ENV_CACHE_DIR = "TRAININGRUN_CACHE_DIR"  # tokenised data, keyed by content
# Set only where pods are real ones.
ENV_MEMBERSHIP_CA = (
    "TRAININGRUN_MEMBERSHIP_CA"  # PEM file: trust only this CA; read again for each connection
)
ENV_MEMBERSHIP_TOKEN = "TRAININGRUN_MEMBERSHIP_TOKEN"  # file with the bearer token; the kubelet renews it
ENV_CLAIMS_DIR = "TRAININGRUN_CLAIMS_DIR"  # pvc://claim/path is <this>/claim/path
# "OnFailure": the kubelet restarts whatever ends with a code other than 0, so an ending that must not be restarted
# (exit_codes.NEVER_RESTARTED) exits with 0; the true code is in the termination message.
ENV_RESTART_POLICY = "TRAININGRUN_RESTART_POLICY"
# "1": what the ranks write to their log files appears on the agent's standard output too, as `[rank 3] …`.
ENV_LOG_STDOUT = "TRAININGRUN_LOG_STDOUT"

TOKEN_AUDIENCE = "membership.trainingrun.dev"

_RECORD_NAME = re.compile(r"^(?P<run>.+)-(?P<kind>[re])(?P<number>\d+)$")


def pod_name(run: str, slot: int, incarnation: int) -> str:
    return f"{run}-{slot}-{incarnation}"


def revision_name(run: str, revision: int) -> str:
    return f"{run}-r{revision}"


def epoch_name(run: str, epoch: int) -> str:
    return f"{run}-e{epoch}"


def parse_record_name(name: str) -> tuple[str, str, int] | None:
    """(run, kind 'r' or 'e', number) of a record's name, or None for a foreign name."""
    match = _RECORD_NAME.match(name)
    return (match["run"], match["kind"], int(match["number"])) if match else None


def checkpoint_dir(step: int, epoch: int) -> str:
    """Folder of one durable checkpoint. The epoch in it keeps a fenced writer away from a newer one's files."""
    return f"step-{step:08d}.e{epoch:04d}"


def fence_name(epoch: int) -> str:
    return f"fence-e{epoch:04d}"


MANIFEST_FILE = "manifest.json"
OWNER_FILE = "owner.json"
