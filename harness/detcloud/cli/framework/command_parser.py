"""The parser of a command and its handler, which the command's module registers in `HANDLERS`."""

from __future__ import annotations

from argparse import REMAINDER, SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from detcloud.cli.framework.command_index import Command
from detcloud.cli.framework.usage_error import report_usage_error


class Handler(NamedTuple):
    """Two functions: one declares a command's arguments, one runs it and returns an exit code."""

    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


Handlers = Mapping[str, Handler]
"""Handlers by the name of the command, such as `experiment list`."""


def load_command(command: Command, typed: str) -> tuple[CommandParser, Callable[[Namespace], int]]:
    """Import a command's module, and return the command's parser, named as the command was typed,
    and the function that runs it.
    """
    handlers: Handlers = import_module(f"detcloud.cli.commands.{command.module}").HANDLERS
    handler = handlers[command.name]
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    parser = CommandParser(prog=f"detcloud {typed}", description=summary, allow_abbrev=False)
    if not command.is_local:
        parser.add_argument("--url", metavar="URL", help="the cluster to speak to")
    handler.add_arguments(parser)
    return parser, handler.run


class CommandParser(ArgumentParser):
    """An argument parser that accepts options and arguments in any order.

    It prints an error as a line and a hint, like all other errors.
    """

    def parse_command(self, words: list[str]) -> Namespace:
        """Parse the words after a command's name.

        argparse assigns an optional argument as soon as the first required one is read, and then
        refuses a value that follows an option: `create FILE --paused DIR`. Its intermixed mode
        reads all options first. That mode supports neither a program's arguments, which may look
        like options, nor an argument that excludes an option.

        Raises:
            SystemExit: a word is wrong, or asks for help.
        """
        excluded = [
            action for group in self._mutually_exclusive_groups for action in group._group_actions
        ]
        positionals = [action for action in self._actions if not action.option_strings]
        if any(action.nargs == REMAINDER or action in excluded for action in positionals):
            return self.parse_args(words)
        return self.parse_intermixed_args(words)

    def error(self, message: str) -> NoReturn:
        """Print the error and exit. The hint names the option that was probably meant."""
        hint = self._option_hint(message) or f"see `{self.prog} --help`"
        raise SystemExit(report_usage_error(message, hint))

    def print_help(self, file: Any = None) -> None:
        """Prints the help and flushes it here, where a full disk is an error like any other."""
        print(self.format_help(), end="", file=file, flush=True)

    def _option_hint(self, message: str) -> str | None:
        place, _, words = message.partition("unrecognized arguments: ")
        unknown = words.partition(" ")[0].partition("=")[0]
        if place or not unknown.startswith("--"):
            return None
        known = [
            flag
            for action in self._actions
            if action.help != SUPPRESS  # accepted only to say what there is in its place
            for flag in action.option_strings
        ]
        close = get_close_matches(unknown, known, 1)
        return f"did you mean {close[0]}? see `{self.prog} --help`" if close else None
