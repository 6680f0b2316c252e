"""Refusals that an agent hears, each with its HTTP status and the code in the body. Raised by the state
machine and the server; turned into a response in one place (`server`).
"""

from __future__ import annotations


class Refused(Exception):
    status = 500
    code = "Internal"


class BadMessage(Refused):
    """The body is not the message that it must be; the text names the path."""

    status = 400
    code = "BadMessage"


class RunGone(Refused):
    """There is no such run. The agent ends."""

    status = 404
    code = "RunGone"


class StaleIncarnation(Refused):
    """A newer incarnation, or a newer agent process, has this seat. The agent ends."""

    status = 409
    code = "StaleIncarnation"


class UnknownSession(Refused):
    """Unknown session: this service restarted, or counted the member as lost. The agent joins again."""

    status = 410
    code = "UnknownSession"


class ProtocolMismatch(Refused):
    """No common protocol version. The agent ends."""

    status = 426
    code = "ProtocolMismatch"


class RecordsUnavailable(Refused):
    """The records cannot be read now. The agent tries again."""

    status = 503
    code = "Unavailable"


class Unauthenticated(Refused):
    """No bearer token, or one that proves nothing. The agent tries again with what the kubelet renews."""

    status = 401
    code = "Unauthenticated"


class Forbidden(Refused):
    """The caller is known, and may not say this: it is another run's, another seat's or the controller's."""

    status = 403
    code = "Forbidden"


class GateUnavailable(Refused):
    """Who calls cannot be found out now. The caller tries again."""

    status = 503
    code = "Unavailable"
