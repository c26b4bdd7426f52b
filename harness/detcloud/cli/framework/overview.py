"""Help texts of the program and of each noun, made from the index of commands alone."""

from __future__ import annotations

from detcloud.cli.framework.command_index import COMMANDS, NOUNS, noun_spellings
from detcloud.cli.framework.exit_codes import EXIT_CODES


def render_overview() -> str:
    """Return the help of `detcloud --help`: the flat commands, the nouns and the exit codes.

    A command with several flat forms is shown by the first form.
    """
    flat = [(command.flat[0], command.summary) for command in COMMANDS if command.flat]
    nouns = [(_noun_title(noun), summary) for noun, summary in NOUNS.items()]
    return "\n".join(
        [
            "usage: detcloud [--url URL] COMMAND ...",
            "",
            "Submits machine-learning experiments to a cluster, in a cloud or on this machine.",
            "",
            "commands (those on experiments can also be written `detcloud experiment COMMAND`):",
            *_align(flat),
            "",
            "nouns with further commands (short form in parentheses):",
            *_align(nouns),
            "",
            "exit codes:",
            *_align([(str(code), meaning) for code, meaning in EXIT_CODES.items()]),
            "",
            "See `detcloud COMMAND --help` for options, `detcloud --version` for the version.",
        ]
    )


def render_noun_overview(noun: str) -> str:
    """Return the help of `detcloud NOUN --help`: the commands of the noun, with aliases of verbs.

    Args:
        noun: a noun of NOUNS, not a short form. Another word raises KeyError.
    """
    verbs = [
        (", ".join((command.verb, *command.verb_aliases)), command.summary)
        for command in COMMANDS
        if command.noun == noun
    ]
    return "\n".join([f"usage: detcloud {noun} COMMAND ...", "", f"{NOUNS[noun]}:", *_align(verbs)])


def _noun_title(noun: str) -> str:
    """Return `experiment (e)`, or the noun alone if no short form exists."""
    name, *short = noun_spellings(noun)
    return f"{name} ({short[0]})" if short else name


def _align(rows: list[tuple[str, str]]) -> list[str]:
    """Return a line for each row, with the second texts below each other.

    Args:
        rows: at least a single row.
    """
    width = max(len(name) for name, _ in rows)
    return [f"  {name:<{width}}  {summary}" for name, summary in rows]
