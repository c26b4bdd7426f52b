"""The completion table: possible next words by the words typed before."""

from __future__ import annotations

from collections.abc import Iterator

from detcloud.cli.framework.command_index import commands_by_verb, flat_commands
from detcloud.cli.framework.completion_scripts import FILES
from detcloud.cli.framework.grammar import CommandForm, command_forms, command_spellings
from detcloud.cli.framework.nouns import NOUNS, noun_spellings


def completion_table() -> dict[str, str]:
    """Return the possible next words, separated by spaces, by the words typed before.

    Keys are for example "", `trial`, `trial logs` and `trial logs --level`. The entry of a command
    has its flags and the choices of its arguments. A flag has an entry only if it takes a value;
    the entry is "" if any value is possible. The word `FILES` stands for names of files. The
    modules of all commands are imported.
    """
    first_words = [*flat_commands(), *NOUNS, "--help", "--version", "--url"]
    table = {"": " ".join(first_words), "--url": ""}
    for noun in NOUNS:
        verbs = dict.fromkeys(verb.split(" ")[0] for verb in commands_by_verb(noun))
        for name in noun_spellings(noun):
            table[name] = " ".join(verbs)
    forms = command_forms()
    for typed, command in command_spellings():
        group, _, verb = typed.rpartition(" ")
        if group.count(" ") or group in flat_commands():
            table[group] = f"{table.get(group, '')} {verb}".strip()
        table.update(_command_entries(typed, forms[command.name]))
    return table


def _command_entries(typed: str, form: CommandForm) -> Iterator[tuple[str, str]]:
    """Yield the table entries, pairs of key and words, of a command and of all flags that take a
    value.

    The command's own entry has all flags, and the choices of all positional arguments. A value that
    is a path gives the word `FILES`, and a value without choices gives "".

    Args:
        typed: the spelling of the command that begins all keys.
        form: the options and arguments of the command.
    """
    words = [flag for option in form.options for flag in option.flags]
    for argument in form.arguments:
        words += argument.choices
        words += [FILES] if argument.takes_path else []
    yield typed, " ".join(dict.fromkeys(words))
    for option in form.options:
        if option.takes_value:
            values = " ".join([*option.choices, *[FILES] * option.takes_path])
            yield from ((f"{typed} {flag}", values) for flag in option.flags)
