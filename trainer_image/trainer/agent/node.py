"""What the parts of one agent share: made once by `main`, handed to whatever acts on epochs."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.agent.buddies import Buddies
from trainer.agent.echo import Echo
from trainer.agent.inbox import Inbox
from trainer.agent.news import News
from trainer.agent.parts import Spec
from trainer.agent.settings import Settings
from trainer.agent.snapshots import Snapshots
from trainer.agent.survey import Survey
from trainer.agent.warm import WarmServer


@dataclass(frozen=True)
class Node:
    settings: Settings
    session: str
    spec: Spec
    rank_module: str
    snapshots: Snapshots
    buddies: Buddies
    survey: Survey
    warm: WarmServer
    news: News
    inbox: Inbox
    echo: Echo
