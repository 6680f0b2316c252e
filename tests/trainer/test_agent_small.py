"""The agent's small parts, without processes: settings, inbox, evidence, last words, facts."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from trainer.agent import exits, facts, last_words, surroundings
from trainer.agent.credentials import Credentials
from trainer.agent.endings import BadConfiguration, Left
from trainer.agent.inbox import Inbox
from trainer.agent.news import News
from trainer.agent.parts import real_parts
from trainer.agent.settings import from_environment
from trainer.agent.strays import reap_strays
from trainer.agent.survey import Survey
from trainer.job import Mailbox
from trainingrun.protocol import names
from trainingrun.protocol.messages import AgentPhase, Directive, DirectiveKind, Progress, Termination
from trainingrun.protocol.records import EpochSummary, RankExit

ENVIRONMENT = {
    names.ENV_RUN_NAME: "r",
    names.ENV_RUN_UID: "u",
    names.ENV_POD_NAME: "r-0-0",
    names.ENV_POD_UID: "p",
    names.ENV_NODE_NAME: "n",
    names.ENV_POD_ADDRESS: "10.0.0.1",
    names.ENV_SLOT: "0",
    names.ENV_INCARNATION: "3",
    names.ENV_PROCESSES: "2",
    names.ENV_MEMBERSHIP_URL: "http://membership:8080/",
    names.ENV_SPEC_FILE: "/etc/run/spec.json",
    names.ENV_SNAPSHOT_DIR: "/dev/shm/run",
    names.ENV_TERMINATION_LOG: "/dev/termination-log",
    names.ENV_LOG_DIR: "/logs",
    names.ENV_CACHE_DIR: "/cache",
}


def test_settings_are_read_from_the_environment() -> None:
    settings = from_environment(ENVIRONMENT)
    assert (settings.slot, settings.incarnation, settings.processes) == (0, 3, 2)
    assert settings.membership_url == "http://membership:8080"
    assert settings.mailboxes == Path("/dev/shm/run/mailboxes")


@pytest.mark.parametrize("name", sorted(ENVIRONMENT))
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(BadConfiguration, match=f"{name} is not set"):
        from_environment({**ENVIRONMENT, name: ""})


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        (names.ENV_SLOT, "-1", "not a whole number of at least 0"),
        (names.ENV_PROCESSES, "0", "not a whole number of at least 1"),
        (names.ENV_MEMBERSHIP_URL, "membership:8080", "not a URL like http://host:port"),
        (names.ENV_SPEC_FILE, "spec.json", "not an absolute path"),
    ],
)
def test_an_ill_typed_variable_is_named_with_its_value(name: str, value: str, problem: str) -> None:
    with pytest.raises(BadConfiguration, match=f"{name}='{value}' is {problem}"):
        from_environment({**ENVIRONMENT, name: value})


def test_only_the_newest_directive_counts_and_each_is_taken_once() -> None:
    inbox = Inbox()
    inbox.joined()
    generation, seen = inbox.position
    assert (generation, seen) == (1, 0)
    inbox.offer(Directive(2, DirectiveKind.PREPARE, nonce="b"), generation)
    inbox.offer(Directive(1, DirectiveKind.PREPARE, nonce="a"), generation)
    taken = inbox.take()
    assert taken is not None
    assert taken.nonce == "b"
    inbox.offer(Directive(2, DirectiveKind.PREPARE, nonce="b"), generation)
    assert inbox.take() is None


def test_a_directive_that_comes_while_the_one_before_is_acted_on_is_not_lost() -> None:
    inbox = Inbox()
    inbox.offer(Directive(1, DirectiveKind.PAUSE), 0)
    peeked = inbox.peek()
    assert peeked is not None
    inbox.offer(Directive(2, DirectiveKind.PREPARE), 0)
    inbox.acted_on(peeked)
    assert inbox.take() == Directive(2, DirectiveKind.PREPARE)


def test_a_directive_from_before_a_new_join_is_dropped() -> None:
    inbox = Inbox()
    inbox.joined()
    old, _ = inbox.position
    inbox.joined()
    inbox.offer(Directive(9, DirectiveKind.LEAVE), old)
    assert inbox.take() is None
    assert inbox.position == (2, 0)
    inbox.end(Left("first"))
    inbox.end(Left("second"))
    with pytest.raises(Left, match="first"):
        inbox.take()


def test_a_change_is_news_until_it_is_delivered_and_again_after_a_new_join(tmp_path: Path) -> None:
    news = News("s", 3, tuple)
    mailbox = Mailbox(tmp_path)
    mailbox.post_progress(Progress(5, 0.5, 500, 1.0, 1e-3, 10, EpochSummary(2)))
    mailbox.post_activity("restoring")
    version = news.change(phase=AgentPhase.RUNNING, epoch=2, mailbox=mailbox)
    assert news.change(phase=AgentPhase.RUNNING) == version
    composed, report = news.compose()
    assert (composed, report.session, report.slot, report.epoch, report.activity) == (
        version,
        "s",
        3,
        2,
        "restoring",
    )
    assert report.progress is not None
    assert report.progress.step == 5
    assert news.running_epoch() == 2
    assert not news.wait_delivered(version, 0)
    news.delivered(version)
    assert news.wait_delivered(version, 0)
    news.forget_deliveries()
    assert not news.wait_delivered(version, 0)


def test_a_manifest_that_is_not_whole_is_reported_as_damaged(tmp_path: Path) -> None:
    spec = {"checkpoint": {"location": {"uri": f"file://{tmp_path}"}}}
    news = News("session", 0, tuple)
    survey = Survey(lambda: real_parts().look(spec), news)
    assert survey.look() == ""
    assert (news.compose()[1].damaged, news.compose()[1].location_fresh) == ((), True)
    (tmp_path / "step-00000010.e0001").mkdir()
    (tmp_path / "step-00000010.e0001" / names.MANIFEST_FILE).write_text("{}")
    news.change(damaged=("step-00000020.e0001",))
    survey.look()
    report = news.compose()[1]
    assert report.damaged == ("step-00000010.e0001", "step-00000020.e0001")
    assert (report.durable, report.location_fresh) == ((), False)
    (tmp_path / names.OWNER_FILE).write_text("")
    assert (
        f"is damaged: put it back as it was, or remove it: '{tmp_path / names.OWNER_FILE}'" in survey.look()
    )
    assert news.compose()[1] == report  # the last good answer stands


def test_evidence_is_what_ended_by_itself_with_its_own_words_or_its_last_output(tmp_path: Path) -> None:
    logs = {rank: tmp_path / f"{rank}.log" for rank in range(4)}
    logs[1].write_text("x" * 5000 + "\nlast line")
    posted = [RankExit(7, 0, 1, "ValueError: boom")]
    found = exits.evidence(7, {1: -9, 0: 1}, posted, logs, out_of_memory=False, result_posted=False)
    assert [(e.local_rank, e.exit_code) for e in found] == [(1, 137), (0, 1)]
    assert found[0].message.startswith("killed by SIGKILL")
    assert found[0].message.endswith("last line")
    assert len(found[0].message.encode()) <= 2048
    assert found[1].message == "ValueError: boom"
    starved = exits.evidence(7, {1: -9}, [], logs, out_of_memory=True, result_posted=False)
    assert "out of memory" in starved[0].message
    orphan = exits.evidence(7, {1: exits.SERVER_GONE}, [], logs, out_of_memory=True, result_posted=False)
    assert orphan[0].message.startswith("killed, because its fork server died: out of memory")
    silent = exits.evidence(7, {0: 0}, [], logs, out_of_memory=False, result_posted=False)
    assert (silent[0].exit_code, silent[0].message) == (1, "ended without a result")
    assert exits.evidence(7, {0: 0}, [], logs, out_of_memory=False, result_posted=True) == ()
    assert exits.one_line("Traceback (most recent call last):\n  File\nValueError: x") == "ValueError: x"


def test_last_words_are_whole_and_fit_what_a_kubelet_keeps(tmp_path: Path) -> None:
    path = tmp_path / "termination"
    words = Termination(1, "Application", "begin " + "ö\n" * 9000 + " end", epoch=4, summary=EpochSummary(4))
    last_words.write(path, words)
    assert len(path.read_bytes()) <= 4096
    read = last_words.read(path)
    assert read is not None
    assert read.message.startswith("begin")
    assert read.message.endswith("end")
    assert replace(read, message="") == replace(words, message="")
    assert [p.name for p in tmp_path.iterdir()] == ["termination"]
    path.write_text(json.dumps({"exitCode": 1})[:-3])
    assert last_words.read(path) is None


def test_last_words_are_left_in_a_file_whose_folder_takes_no_other(tmp_path: Path) -> None:
    """As a kubelet mounts it: nothing can be made beside the file, and it cannot be replaced."""
    words = Termination(64, "BadConfiguration", "a longer message than the next")
    with (tmp_path / "mounted").open("w+b") as mounted:
        path = Path(f"/proc/self/fd/{mounted.fileno()}")
        last_words.write(path, words)
        assert last_words.read(path) == words
        last_words.write(path, Termination(0, "Done"))
        assert last_words.read(path) == Termination(0, "Done")


def test_credentials_come_with_https_and_only_together() -> None:
    secure = {names.ENV_MEMBERSHIP_URL: "https://membership.operator.svc:8443"}
    files = {names.ENV_MEMBERSHIP_CA: "/run/ca.crt", names.ENV_MEMBERSHIP_TOKEN: "/run/token"}
    assert from_environment(ENVIRONMENT).credentials is None
    settings = from_environment({**ENVIRONMENT, **secure, **files, names.ENV_LOG_STDOUT: "1"})
    assert settings.credentials == Credentials(Path("/run/ca.crt"), Path("/run/token"))
    assert settings.log_stdout
    for wrong in (files, secure, {**secure, names.ENV_MEMBERSHIP_CA: "/run/ca.crt"}):
        with pytest.raises(BadConfiguration, match="an https URL needs both files, an http one none"):
            from_environment({**ENVIRONMENT, **wrong})
    with pytest.raises(BadConfiguration, match=f"{names.ENV_RESTART_POLICY}='Always' is not 'OnFailure' or"):
        from_environment({**ENVIRONMENT, names.ENV_RESTART_POLICY: "Always"})


@pytest.mark.parametrize(
    ("token", "expired"),
    [
        ("", False),
        ("abc", False),
        ("a.b.c", False),
        (".eyJleHAiOjF9.", True),
        (".eyJleHAiOjk5OTk5OTk5OTl9.", False),
    ],
)
def test_a_token_knows_when_it_has_run_out(tmp_path: Path, token: str, expired: bool) -> None:
    (tmp_path / "token").write_text(token)
    assert Credentials(tmp_path / "ca.crt", tmp_path / "token").expired() is expired
    assert not Credentials(tmp_path / "ca.crt", tmp_path / "none").expired()


def test_what_a_bare_container_lacks_is_below_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_000)  # nobody's
    cache = tmp_path / "cache"
    found = surroundings.missing({"HOME": "/nonexistent", "HF_HOME": "/models"}, cache)
    assert (found["USER"], found["LOGNAME"], found["HOME"]) == ("trainer", "trainer", str(cache / "home"))
    assert found["TRITON_CACHE_DIR"] == str(cache / "triton")
    assert "HF_HOME" not in found
    assert "TMPDIR" not in found
    assert (cache / "home").is_dir()
    monkeypatch.setattr(surroundings, "_temporary_folders", lambda environment: ["/proc"])
    assert surroundings.missing({"HOME": str(tmp_path), "USER": "me", "LOGNAME": "me"}, cache) == {
        "TMPDIR": str(cache / "tmp")
    }


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    assert surroundings.missing({"HOME": str(tmp_path)}, tmp_path / "cache") == {}
    assert not (tmp_path / "cache").exists()


def test_the_device_and_the_memory_kills_are_read_where_the_kernel_shows_them(tmp_path: Path) -> None:
    assert facts.device(tmp_path / "gpus") == "cpu"
    card = tmp_path / "gpus" / "0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   4\n")
    assert facts.device(tmp_path / "gpus") == "NVIDIA H100 80GB HBM3"
    group = tmp_path / "cgroup"
    group.write_text("5:memory:/a\n0::/b\n")
    assert facts.oom_kills(group, tmp_path) == 0
    (tmp_path / "memory" / "a").mkdir(parents=True)
    (tmp_path / "memory" / "a" / "memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    )
    assert facts.oom_kills(group, tmp_path) == 2
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "memory.events").write_text("low 0\noom 1\noom_kill 5\n")
    (tmp_path / "memory" / "a" / "memory.oom_control").unlink()
    assert facts.oom_kills(group, tmp_path) == 5


def test_an_init_process_reaps_strays_and_leaves_alone_what_is_waited_for() -> None:
    stray = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, stray, os.WEXITED | os.WNOWAIT)
    reap_strays()  # this process is no init
    os.waitid(os.P_PID, stray, os.WEXITED | os.WNOWAIT)
    reap_strays(init=os.getpid())
    with pytest.raises(ChildProcessError):
        os.waitpid(stray, 0)
