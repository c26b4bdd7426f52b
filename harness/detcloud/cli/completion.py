"""Prints a script that completes commands, flags and choices in a shell.

The script holds one table: for what was typed so far, the words that may come next. It asks
nothing of this program, so that a tab costs no start of Python.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator

from detcloud.cli.commands import NOUN_ALIASES, NOUNS, flat_words, words_of
from detcloud.cli.grammar import Form, forms, spellings
from detcloud.cli.shells import FILES, bash_script, fish_script, zsh_script

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


def completion_arguments(parser: ArgumentParser) -> None:
    setup = "; ".join(SETUP.values())
    parser.add_argument("shell", choices=tuple(SCRIPTS), help=f"set it up with: {setup}")


def completion(arguments: Namespace) -> int:
    print(SCRIPTS[arguments.shell](table()), end="")
    return 0


def table() -> dict[str, str]:
    """The words that may follow, by the words before: `trial`, `trial logs`, `trial logs --level`.

    A flag that takes a value has an entry of its own; `FILES` stands for the names of files.
    """
    found = {"": " ".join([*_first_words(), "--help", "--version", "--url"]), "--url": ""}
    for noun in NOUNS:
        verbs = dict.fromkeys(verb.split(" ")[0] for verb in words_of(noun))
        for name in _names(noun):
            found[name] = " ".join(verbs)
    known = forms()
    for typed, command in spellings():
        group, _, verb = typed.rpartition(" ")
        if group.count(" ") or group in flat_words():
            found[group] = f"{found.get(group, '')} {verb}".strip()
        found.update(_entries(typed, known[command.place]))
    return found


def _first_words() -> Iterator[str]:
    yield from flat_words()
    yield from NOUNS


def _names(noun: str) -> list[str]:
    return [noun, *(short for short, whole in NOUN_ALIASES.items() if whole == noun)]


def _entries(typed: str, form: Form) -> Iterator[tuple[str, str]]:
    words = [flag for option in form.options for flag in option.flags]
    for argument in form.arguments:
        words += argument.choices
        words += [FILES] if argument.takes_path else []
    yield typed, " ".join(dict.fromkeys(words))
    for option in form.options:
        if option.takes_value:
            after = " ".join([*option.choices, *[FILES] * option.takes_path])
            yield from ((f"{typed} {flag}", after) for flag in option.flags)
