"""The one error of the harness: that of the tools which it builds with, so that one `except` catches both."""

from __future__ import annotations

from tools.errors import ToolError as HarnessError

__all__ = ["HarnessError"]
