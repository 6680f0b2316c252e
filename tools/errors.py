"""The error of the tools: what is wrong, and what to do about it. The test cluster's harness raises it too."""

from __future__ import annotations


class ToolError(Exception):
    """`str()` is one line for a person; `hint` is the fix, if there is one."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint
