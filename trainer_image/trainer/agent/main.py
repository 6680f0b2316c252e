"""The agent's life: settings, fork server, membership, data, then epochs until something ends it.

Called by `python -m trainer.agent`. Must run in the main thread, which must live as long as the process: fork
server and data process die with the thread that made them. Its last words are written before it ends,
whatever the reason.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from trainer.agent import facts, last_words, surroundings
from trainer.agent.buddies import Buddies
from trainer.agent.client import Client
from trainer.agent.data_process import DataProcess
from trainer.agent.echo import Echo
from trainer.agent.endings import BadConfiguration, Broken, Ending, Left
from trainer.agent.inbox import Inbox
from trainer.agent.news import News
from trainer.agent.node import Node
from trainer.agent.parts import Parts, Spec, real_parts
from trainer.agent.peers import PeerServer
from trainer.agent.settings import RESTART_ON_FAILURE, Settings, from_environment
from trainer.agent.snapshots import Snapshots
from trainer.agent.startup import Loader, get_ready
from trainer.agent.survey import Survey
from trainer.agent.warm import WarmServer
from trainer.agent.wire_client import Connection
from trainer.errors import ConfigError, TrainerError
from trainingrun.protocol import PROTOCOL_MAX, PROTOCOL_MIN, names
from trainingrun.protocol.exit_codes import NEVER_RESTARTED, ExitCode
from trainingrun.protocol.messages import AgentPhase, JoinRequest, Termination

logger = logging.getLogger(__name__)

_LAST_REPORT_SECONDS = 1.0
_LAST_OUTPUT_SECONDS = 1.0


def main(parts: Parts | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """The agent's exit code (protocol.exit_codes); 0 for one after which a kubelet must not restart it."""
    _set_up_logging()
    agent: Agent | None = None
    try:
        settings = from_environment(environment)
        surroundings.complete(settings.cache_dir)
        agent = Agent(settings, parts or real_parts())
        agent.run()
        raise RuntimeError("an agent ends only with an Ending")
    except Ending as ending:
        termination = ending.termination
    except Exception:  # noqa: BLE001 - the edge of the process: even a defect must leave last words
        termination = Termination(ExitCode.APPLICATION, "Application", traceback.format_exc())
    _say_goodbye(termination, environment, agent)
    return process_exit_code(termination.exit_code, environment.get(names.ENV_RESTART_POLICY, ""))


class Agent:
    def __init__(self, settings: Settings, parts: Parts) -> None:
        self._settings = settings
        self._parts = parts
        self._session = uuid.uuid4().hex
        self._inbox = Inbox()
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._on_signal)
        self._snapshots = Snapshots(settings.snapshot_dir)
        self.echo = Echo(settings.log_stdout)
        self.news = News(self._session, settings.slot, self._snapshots.held)

    def run(self) -> None:
        """Raises the Ending."""
        settings, parts = self._settings, self._parts
        spec = self._read_spec()
        rank_module = parts.rank_module_for(spec)
        warm = WarmServer(rank_module)
        warm.start()
        loader = Loader("trainer.agent.epochs", self._inbox)
        data = DataProcess(parts.data_module, spec, settings.cache_dir)
        try:
            self._claim(spec)
            store_socket, peers = _listen(), PeerServer(self._snapshots)
            peers.start()
            self._join(store_socket.getsockname()[1], peers.port)
            get_ready(warm, data, loader, self.news, self._inbox)
        finally:
            data.stop()
        from trainer.agent.epochs import run_epochs  # not above: it takes torch along

        survey = Survey(lambda: parts.look(spec), self.news)
        node = Node(
            settings=settings,
            session=self._session,
            spec=spec,
            rank_module=rank_module,
            snapshots=self._snapshots,
            buddies=Buddies(self._snapshots),
            survey=survey,
            warm=warm,
            news=self.news,
            inbox=self._inbox,
            echo=self.echo,
        )
        run_epochs(node, store_socket)

    def _read_spec(self) -> Spec:
        path = self._settings.spec_file
        try:
            spec: Spec = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            variable = names.ENV_SPEC_FILE
            raise BadConfiguration(f"{variable}={str(path)!r} cannot be read as JSON: {error}") from error
        try:
            self._parts.check_spec(spec)
        except TrainerError as error:
            raise _ending_for(error) from error
        except (KeyError, TypeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise BadConfiguration(f"the specification {path} is not a resolved one ({problem})") from error
        return spec

    def _claim(self, spec: Spec) -> None:
        try:
            self._parts.claim(spec, self._settings.run_uid, self._settings.run_name)
        except TrainerError as error:
            raise _ending_for(error) from error
        except OSError as error:
            raise Broken(f"the checkpoint location cannot be used: {error}") from error

    def _join(self, store_port: int, peer_port: int) -> None:
        settings = self._settings

        def request() -> JoinRequest:
            return JoinRequest(
                protocol=(PROTOCOL_MIN, PROTOCOL_MAX),
                slot=settings.slot,
                incarnation=settings.incarnation,
                pod=settings.pod_name,
                session=self._session,
                node=settings.node_name,
                address=settings.pod_address,
                store_port=store_port,
                peer_port=peer_port,
                processes=settings.processes,
                device=facts.device(),
                running_epoch=self.news.running_epoch(),
            )

        credentials = settings.credentials
        Client(
            lambda: Connection(settings.membership_url, settings.run_uid, credentials),
            request,
            self.news,
            self._inbox,
            token_expired=credentials.expired if credentials else lambda: False,
        ).start()

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._inbox.end(Left(f"asked to stop by {signal.Signals(signum).name}"))


def process_exit_code(code: int, restart_policy: str) -> int:
    """What the process ends with. A kubelet with the policy OnFailure would restart whatever is not 0; the true code
    is in the last words."""
    return int(ExitCode.DONE) if restart_policy == RESTART_ON_FAILURE and code in NEVER_RESTARTED else code


def _ending_for(error: TrainerError) -> Ending:
    if isinstance(error, ConfigError):
        return BadConfiguration(str(error), error.reason)
    return BadConfiguration(str(error)) if error.exit_code in NEVER_RESTARTED else Broken(str(error))


def _listen() -> socket.socket:
    """The socket of the store: bound before torch is there, so that its port can be told at once."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("", 0))
    listener.listen(1024)
    return listener


def _say_goodbye(termination: Termination, environment: Mapping[str, str], agent: Agent | None) -> None:
    path = environment.get(names.ENV_TERMINATION_LOG)
    if path:
        try:
            last_words.write(Path(path), termination)
        except OSError as error:
            logger.error("the last words cannot be left in %s: %s", path, error)
    if agent is not None:
        agent.echo.close(_LAST_OUTPUT_SECONDS)
    level = logging.INFO if termination.exit_code == ExitCode.DONE else logging.ERROR
    logger.log(level, "ends with %d (%s) %s", termination.exit_code, termination.reason, termination.message)
    if agent is None:
        return
    # The ranks are dead by now. Completion is membership's to hear; who was asked to leave frees the seat at once.
    state = agent.news.state
    phase = state.phase
    if termination.exit_code == ExitCode.DONE:
        phase = AgentPhase.DONE
    elif phase is AgentPhase.RUNNING:
        phase = AgentPhase.IDLE
    leaving = termination.exit_code == ExitCode.LEFT
    version = agent.news.change(phase=phase, activity="leaving", leaving=leaving)
    agent.news.wait_delivered(version, _LAST_REPORT_SECONDS)


def _set_up_logging() -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d agent: %(message)s",
        datefmt="%H:%M:%S",
    )
    logging.getLogger("torch").setLevel(logging.ERROR)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
