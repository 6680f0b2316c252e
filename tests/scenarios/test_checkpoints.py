"""Durable checkpoints that are damaged, gone or cut off while they are saved: never a damaged tensor, never step 0.

Snapshots in memory are switched off, so that every recovery takes the durable rung.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.command import Command, left_behind, trainingrun, write_manifest
from tests.scenarios.line import Line, Moment
from tests.scenarios.lines import open_line, uri_of
from tests.scenarios.manifests import small_manifest
from tests.scenarios.story import Told, told, undisturbed

from trainingrun.api.errors import CliExit
from trainingrun.cluster.local import processes
from trainingrun.cluster.local.store import Store
from trainingrun.protocol import names
from trainingrun.protocol.records import RestoreSource, Trigger

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]

STEPS = 100
INTERVAL = 10
KILLS = 20
CHECKER = Path(__file__).with_name("check_checkpoints.py")

# Both nodes take part in every epoch, so that losses are those of the undisturbed run to the last bit.
DURABLE_ONLY: dict[str, Any] = {
    "checkpoint__memory": {"intervalSteps": 0},
    "checkpoint__durable": {"intervalSteps": INTERVAL, "keepLast": 4},
    "recovery": {"limits": [], "noProgressLimit": 50},
    "scale__minNodes": 2,
}
ONE_NODE = {**DURABLE_ONLY, "scale__minNodes": 1, "scale__maxNodes": 1}  # where nothing depends on how many


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return told(tmp_path_factory.mktemp("calm"), undisturbed, steps=STEPS, **DURABLE_ONLY)


def location_of(folder: Path) -> Path:
    return folder / "checkpoints" / "scenario"


def committed(location: Path) -> list[str]:
    """Names of checkpoints with a manifest, the newest last: by epoch, then step."""
    found = [path.parent.name for path in location.glob(f"step-*/{names.MANIFEST_FILE}")]
    return sorted(found, key=lambda name: (name.partition(".e")[2], name))


def flip_a_bit(checkpoint: Path) -> None:
    file = max(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate_a_file(checkpoint: Path) -> None:
    file = max(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)
    os.truncate(file, file.stat().st_size // 2)


def remove_the_manifest(checkpoint: Path) -> None:
    (checkpoint / names.MANIFEST_FILE).unlink()


def kill_all_nodes(line: Line) -> None:
    for node in line.nodes():
        line.kill_node(node.name)


def start_all_nodes(line: Line) -> None:
    for node in line.nodes():
        line.start_node(node.name)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_it(calm: Told, tmp_path: Path) -> None:
    location = location_of(tmp_path)
    kept: list[str] = []

    def story(line: Line) -> None:
        line.wait_for_step(4 * INTERVAL + 1)
        kill_all_nodes(line)
        kept.extend(committed(location)[-4:])
        for name, damage in zip(kept[1:], (truncate_a_file, flip_a_bit, remove_the_manifest), strict=True):
            damage(location / name)
        start_all_nodes(line)
        line.wait_for(lambda now: now.epoch >= 4, "the third try")

    after = told(tmp_path, story, steps=STEPS, **DURABLE_ONLY)

    whole, truncated, flipped, _ = kept
    assert after.triggers == [
        Trigger.STARTED,
        Trigger.MEMBER_LOST,
        Trigger.RESTORE_FAILED,
        Trigger.RESTORE_FAILED,
    ]
    # The newest has no manifest: it does not exist. The others are tried, found damaged, and never tried again.
    assert [epoch.restore.manifest for epoch in after.epochs] == ["", flipped, truncated, whole]
    assert set(after.sources[1:]) == {RestoreSource.DURABLE}
    damaged = [epoch.damaged for epoch in after.epochs]
    assert damaged == [(), (), (flipped,), (truncated, flipped)]
    assert after.losses.furthest_from(calm.losses) == 0.0
    # Whoever was killed with its node might still write somewhere: who shares no member with it fences it off.
    # Epochs 2 and 3 found damage before they trained, and may not have come to it; the one that trained did.
    assert (location / names.fence_name(4)).exists()
    assert all_whole([location]) == DURABLE_ONLY["checkpoint__durable"]["keepLast"]


def test_a_run_with_no_whole_checkpoint_left_stops_and_never_starts_again_from_step_0(tmp_path: Path) -> None:
    location = location_of(tmp_path)
    with open_line(nodes=1, state=tmp_path / "line") as line:
        line.apply(small_manifest(tmp_path, training__duration={"steps": STEPS}, **ONE_NODE))
        line.wait_for_step(2 * INTERVAL + 3)
        kill_all_nodes(line)
        line.kill_membership()  # it remembers nothing but the records, which know of no checkpoint yet
        there = committed(location)
        for name in there:
            flip_a_bit(location / name)
        line.start_membership()
        start_all_nodes(line)
        end = line.wait_for(lambda now: now if stalled(now) else None, "that it stops")
        assert [epoch.restore.source for epoch in end.epochs] == [
            RestoreSource.INITIAL,
            *[RestoreSource.DURABLE] * len(there),
        ]
        [message] = stalled(end)
        assert uri_of(location) in message
        assert all(name in message for name in there)
        assert "hint: " in message
        assert not end.is_true("Failed"), "a person can still put back what is missing"
        line.wait_for(lambda now: now.view is not None and now.view.blocked, "that membership is blocked")
    assert not line.leaks()


@pytest.mark.local_only
def test_a_run_whose_checkpoints_are_taken_away_waits_for_them_and_goes_on_when_they_are_back(
    tmp_path: Path,
) -> None:
    location, aside = location_of(tmp_path), tmp_path / "aside"
    steps = 3 * STEPS  # not done before it is told to stop
    write_manifest(tmp_path, small_manifest(tmp_path, training__duration={"steps": steps}, **ONE_NODE))
    with Command(tmp_path, "local", "run", "run.yaml") as command:
        command.wait_for(lambda: committed(location), "a checkpoint")
        command.interrupt()
        assert command.end().code == 128 + signal.SIGINT

    aside.mkdir()
    taken = committed(location)
    for name in taken:
        (location / name / names.MANIFEST_FILE).rename(aside / name)
    stopped = trainingrun(tmp_path, "local", "run", "run.yaml")
    assert stopped.code == CliExit.RUN_FAILED, stopped.err
    for said in (
        "NoUsableCheckpoint",
        f"file://{location}",
        "there any more",  # the status may not have heard of them before the end
        "put back what is missing",
    ):
        assert said in stopped.out
    assert "from initial weights" not in stopped.err
    assert not left_behind(tmp_path)

    for name in taken:
        (aside / name).rename(location / name / names.MANIFEST_FILE)
    complete = trainingrun(tmp_path, "local", "run", "run.yaml", "-o", "json")
    assert complete.code == CliExit.OK, complete.err
    assert json.loads(complete.out)["step"] == steps
    run = Store(tmp_path / ".trainingrun").run("scenario")
    assert run is not None
    epochs = Store(tmp_path / ".trainingrun").epochs("scenario", run.uid)
    assert [epoch.restore.manifest for epoch in epochs] == ["", taken[-1]]


def test_storage_that_is_away_for_a_while_stops_nothing(calm: Told, tmp_path: Path) -> None:
    location, aside = location_of(tmp_path), tmp_path / "aside"

    def story(line: Line) -> None:
        line.wait_for(lambda now: now.step and committed(location), "a checkpoint")
        put_away(location, aside)
        line.wait_for(told_of_failure, "word of a failed save")
        location.unlink()
        aside.rename(location)

    after = told(tmp_path, story, steps=STEPS, **DURABLE_ONLY)
    assert after.triggers == [Trigger.STARTED]
    assert after.losses.furthest_from(calm.losses) == 0.0
    assert committed(location)[-1].startswith(f"step-{STEPS:08d}")


def put_away(location: Path, aside: Path) -> None:
    """Leaves a file in the folder's place: every save fails. One that begins just now may make the folder again."""
    location.rename(aside)
    for number in itertools.count():
        try:
            location.write_text("no folder")
        except IsADirectoryError:
            location.rename(aside.with_name(f"made-again-{number}"))
        else:
            return


def told_of_failure(now: Moment) -> bool:
    members = now.view.members if now.view is not None else ()
    return any("saving failed" in member.activity for member in members)


def stalled(moment: Moment) -> list[str]:
    """The message, if the run stands still because no checkpoint can be used."""
    return [
        item["message"]
        for item in moment.status.get("conditions") or []
        if (item["type"], item["status"], item["reason"]) == ("Stalled", "True", "NoUsableCheckpoint")
    ]


def test_ranks_killed_while_they_save_leave_only_whole_checkpoints(tmp_path: Path) -> None:
    dice = random.Random(11)
    location, archive = location_of(tmp_path), tmp_path / "archive"
    newest_at_kill: list[str] = []
    in_flight = 0  # kills that hit a save before its manifest

    def story(line: Line) -> None:
        nonlocal in_flight
        for epoch in range(1, KILLS + 1):
            ranks = line.wait_for(
                lambda now, number=epoch: saved_ranks(line, now, location, number), f"epoch {epoch}"
            )
            wait_for_a_save(location, epoch)
            time.sleep(dice.uniform(0.0, 0.06))
            for rank in ranks:
                processes.send(rank, signal.SIGKILL)
            in_flight += unfinished(location, epoch)
            newest_at_kill.append(keep(location, archive / f"{epoch:02d}"))

    after = told(
        tmp_path,
        story,
        steps=4 * STEPS,  # training does not wait for a save, so it is some steps further at each kill
        **{**DURABLE_ONLY, "checkpoint__durable": {"intervalSteps": 1, "keepLast": 3}},
    )
    assert in_flight >= KILLS // 4, "too few kills hit a save"
    assert set(after.triggers[1:]) == {Trigger.PROCESS_DIED}
    assert [epoch.restore.manifest for epoch in after.epochs] == ["", *newest_at_kill]
    assert after.epochs[-1].damaged == ()
    assert all_whole([*sorted(archive.iterdir()), location]) >= KILLS


def saved_ranks(line: Line, now: Moment, location: Path, epoch: int) -> list[processes.Process]:
    """All ranks of that epoch once it has saved something of its own."""
    if now.epoch != epoch or now.view is None or now.view.progress is None:
        return []
    if now.view.progress.summary.epoch != epoch or not any(
        name.endswith(names.checkpoint_dir(0, epoch).partition(".")[2]) for name in committed(location)
    ):
        return []
    ranks = [process for slot in (0, 1) for process in line.ranks(slot).values()]
    return ranks if len(ranks) == now.epochs[-1].rung.world else []


def unfinished(location: Path, epoch: int) -> bool:
    folders = location.glob(names.checkpoint_dir(0, epoch).replace("0" * 8, "*"))
    return any(not (folder / names.MANIFEST_FILE).exists() for folder in folders)


def wait_for_a_save(location: Path, epoch: int) -> None:
    deadline = time.monotonic() + 30
    while not unfinished(location, epoch):
        assert time.monotonic() < deadline, "nothing is saved"
        time.sleep(0.001)


def keep(location: Path, archive: Path) -> str:
    """Link every committed checkpoint into `archive`; the name of the newest, "" while there is none. Nobody
    writes meanwhile: the ranks are dead, and the next ones have not begun to train."""
    found = committed(location)
    archive.mkdir(parents=True)
    for name in found:
        (archive / name).mkdir()
        for file in (location / name).iterdir():
            os.link(file, archive / name / file.name)
    return found[-1] if found else ""


def all_whole(locations: Sequence[Path]) -> int:
    """How many checkpoints are there, all of them whole."""
    answer = subprocess.run(
        [os.environ["TRAININGRUN_TRAINER_PYTHON"], str(CHECKER)],
        input=json.dumps([str(location) for location in locations]),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return int(answer.stdout)
