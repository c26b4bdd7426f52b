"""Help texts of the program and of each noun, made from the index of commands alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from detcloud.cli.framework.command_index import COMMANDS
from detcloud.cli.framework.exit_codes import EXIT_CODES
from detcloud.cli.framework.nouns import NOUNS, noun_spellings

VERB_GROUPS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "experiment": {
        "submit": ("create", "fork", "continue"),
        "watch": (
            "list",
            "describe",
            "follow",
            "debug",
            "wait",
            "logs",
            "metrics",
            "curves",
            "rungs",
            "importance",
            "list-trials",
            "list-checkpoints",
            "config",
            "history",
            "replay",
        ),
        "control": ("pause", "activate", "cancel", "kill"),
        "change": (
            "set name",
            "set description",
            "set metadata",
            "set max-slots",
            "set weight",
            "set priority",
            "set max-cost",
            "set gc-policy",
            "set log-retention",
            "set metrics-retention",
            "label add",
            "label remove",
            "move",
        ),
        "saved views of lists": ("view list", "view save", "view delete"),
        "fetch files": ("download", "download-model-def"),
        "tidy up": ("archive", "unarchive", "delete", "delete-tb-files"),
    },
}
"""The groups of a noun's verbs in the noun's help, by title. Other nouns have one list."""


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

    The commands of a noun of VERB_GROUPS are grouped, and commands of no group come last.

    Args:
        noun: a noun of NOUNS, not a short form. Another word raises KeyError.
    """
    verbs = {
        command.verb: (", ".join((command.verb, *command.verb_aliases)), command.summary)
        for command in COMMANDS
        if command.noun == noun
    }
    lines = [f"usage: detcloud {noun} COMMAND ...", "", f"{NOUNS[noun]}:"]
    groups = VERB_GROUPS.get(noun)
    if groups is None:
        return "\n".join([*lines, *_align(list(verbs.values()))])
    width = max(len(name) for name, _ in verbs.values())
    grouped = {verb for members in groups.values() for verb in members}
    others = [verb for verb in verbs if verb not in grouped]
    for title, members in {**groups, **({"other": others} if others else {})}.items():
        lines += ["", f"{title}:", *_align([verbs[verb] for verb in members], width)]
    return "\n".join(lines)


def _noun_title(noun: str) -> str:
    """Return `experiment (e)`, or the noun alone if no short form exists."""
    name, *short = noun_spellings(noun)
    return f"{name} ({short[0]})" if short else name


def _align(rows: list[tuple[str, str]], width: int = 0) -> list[str]:
    """Return a line for each row, with the second texts below each other.

    Args:
        rows: at least a single row.
        width: the least width of the first texts.
    """
    width = max(width, *(len(name) for name, _ in rows))
    return [f"  {name:<{width}}  {summary}" for name, summary in rows]
