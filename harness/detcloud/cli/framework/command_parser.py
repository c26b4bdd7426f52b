"""The argument parser of commands, whose errors are a line and a hint."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from difflib import get_close_matches
from typing import Any, NoReturn

from detcloud.cli.framework.usage_error import report_usage_error


class CommandParser(ArgumentParser):
    """An argument parser whose errors are a line and a hint, as all errors are."""

    def error(self, message: str) -> NoReturn:
        """Prints the error and exits; the hint names the option that was meant, if any."""
        hint = self._option_hint(message) or f"see `{self.prog} --help`"
        raise SystemExit(report_usage_error(message, hint))

    def print_help(self, file: Any = None) -> None:
        """Prints the help and flushes it here, where a full disk is an error like any other."""
        print(self.format_help(), end="", file=file, flush=True)

    def _option_hint(self, message: str) -> str | None:
        words = message.removeprefix("unrecognized arguments: ")
        unknown = words.partition(" ")[0].partition("=")[0]
        if unknown == message or not unknown.startswith("--"):
            return None
        known = [
            flag
            for action in self._actions
            if action.help != SUPPRESS  # accepted only to say what there is in its place
            for flag in action.option_strings
        ]
        close = get_close_matches(unknown, known, 1)
        return f"did you mean {close[0]}? see `{self.prog} --help`" if close else None
