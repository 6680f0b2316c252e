"""First function of a rank: output to the rank's log, the training, and a last message if that fails.

Runs in a fresh child of the warm fork server. It ends the process itself, so that the exit code is the
training's and no exit handler can hang behind a collective that will never finish.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import traceback
from pathlib import Path

from trainer.agent import exits
from trainer.job import Mailbox, RankJob
from trainingrun.protocol.exit_codes import ExitCode
from trainingrun.protocol.records import RankExit


def run_rank(rank_module: str, job: RankJob, local_rank: int) -> None:
    """Never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all; the agent alone decides
    os.environ.update(launcher_environment(job, local_rank))
    _write_output_to(log_file(job, local_rank))
    faulthandler.enable()
    code = _train(rank_module, job, local_rank)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def launcher_environment(job: RankJob, local_rank: int) -> dict[str, str]:
    """What PyTorch's launchers set. The trainer does not read it; libraries and users' code do."""
    record = job.record
    return {
        "RANK": str(job.rank(local_rank)),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(job.member),
        "WORLD_SIZE": str(record.rung.world),
        "LOCAL_WORLD_SIZE": str(record.rung.processes_per_node),
        "GROUP_WORLD_SIZE": str(len(record.members)),
        "MASTER_ADDR": record.store.host,
        "MASTER_PORT": str(record.store.port),
        "TORCHELASTIC_RUN_ID": job.run_uid,
        "TORCHELASTIC_RESTART_COUNT": str(record.epoch - 1),
    }


def log_file(job: RankJob, local_rank: int) -> Path:
    return job.log_dir / f"epoch-{job.record.epoch:04d}.rank-{job.rank(local_rank):04d}.log"


def _train(rank_module: str, job: RankJob, local_rank: int) -> int:
    try:
        importlib.import_module(rank_module).main(job, local_rank)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        return _failed(job, local_rank, str(error.code))
    except BaseException:  # noqa: BLE001 - the edge of the process: whatever it was must reach the report
        return _failed(job, local_rank, traceback.format_exc())
    return ExitCode.DONE


def _failed(job: RankJob, local_rank: int, text: str) -> int:
    print(text, file=sys.stderr, flush=True)
    mailbox = Mailbox(job.mailbox)
    if not any(error.local_rank == local_rank for error in mailbox.errors()):
        mailbox.post_error(RankExit(job.slot, local_rank, ExitCode.APPLICATION, exits.shorten(text)))
    return ExitCode.APPLICATION


def _write_output_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
