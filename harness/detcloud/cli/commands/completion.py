"""`detcloud completion`: prints a script that completes commands, flags and values in a shell.

The script contains the whole table of words, so that completion does not start Python.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.completion_scripts import bash_script, fish_script, zsh_script
from detcloud.cli.framework.completion_table import completion_table

SCRIPTS: dict[str, Callable[[dict[str, str]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}
SETUP = {
    "bash": 'eval "$(detcloud completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(detcloud completion zsh)" in ~/.zshrc, after compinit',
    "fish": "detcloud completion fish > ~/.config/fish/completions/detcloud.fish",
}


def add_completion_arguments(parser: ArgumentParser) -> None:
    """Add the required argument `shell`, a key of SCRIPTS. The help says how to set up each
    shell.
    """
    setup = "; ".join(SETUP.values())
    parser.add_argument("shell", choices=tuple(SCRIPTS), help=f"to set it up: {setup}")


def print_completion_script(arguments: Namespace) -> int:
    """Print the completion script for the shell of the argument to stdout, and return 0. The
    modules of all commands are imported.
    """
    print(SCRIPTS[arguments.shell](completion_table()), end="")
    return 0


HANDLERS: Handlers = {
    "completion": Handler(add_completion_arguments, print_completion_script),
}
