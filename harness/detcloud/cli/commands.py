"""Every command, once: its noun form, its flat forms and where its code is.

The code of a command is imported when that command runs, so that `detcloud --help` stays fast: the
place `create:create` means the functions `create_arguments` and `create` of `detcloud.cli.create`.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """`detcloud NOUN VERB`, with other verbs and the flat forms that mean the same."""

    noun: str
    verb: str
    summary: str
    place: str
    flat: tuple[str, ...] = ()
    verb_aliases: tuple[str, ...] = ()
    is_local: bool = False
    """Whether it speaks to no cluster but this machine's own, so that it takes no `--url`."""


NOUNS = {
    "experiment": "submit, follow and steer experiments",
    "trial": "look at trials",
    "checkpoint": "list and download checkpoints",
    "agent": "look at the machines",
    "config": "check experiment configurations",
    "cluster": "start and stop the local cluster",
}
NOUN_ALIASES = {"e": "experiment", "t": "trial", "c": "checkpoint", "a": "agent"}

COMMANDS = (
    Command("experiment", "create", "submit an experiment", "create:create", ("create",)),
    Command(
        "experiment", "list", "list experiments", "experiment:listing", ("list", "ls"), ("ls",)
    ),
    Command("experiment", "describe", "show an experiment", "experiment:describe", ("describe",)),
    Command(
        "experiment", "follow", "watch an experiment until it ends", "follow:follow", ("follow",)
    ),
    Command("experiment", "wait", "wait until an experiment ended", "experiment:wait", ("wait",)),
    Command(
        "experiment", "logs", "print the logs of its trials", "logs:experiment_logs", ("logs",)
    ),
    Command("experiment", "config", "print its configuration", "experiment:config"),
    Command(
        "experiment",
        "pause",
        "checkpoint its trials and free their slots",
        "experiment:pause",
        ("pause",),
    ),
    Command(
        "experiment",
        "activate",
        "go on after a pause",
        "experiment:activate",
        ("activate",),
        ("unpause",),
    ),
    Command(
        "experiment", "cancel", "end it at the next checkpoints", "experiment:cancel", ("cancel",)
    ),
    Command("experiment", "kill", "end it at once", "experiment:kill", ("kill",)),
    Command("experiment", "list-trials", "list its trials", "trial:listing", (), ("lt",)),
    Command(
        "experiment", "list-checkpoints", "list its checkpoints", "checkpoint:listing", (), ("lc",)
    ),
    Command("trial", "list", "list the trials of an experiment", "trial:listing", (), ("ls",)),
    Command("trial", "describe", "show a trial", "trial:describe"),
    Command("trial", "logs", "print the log of a trial", "logs:trial_logs"),
    Command(
        "checkpoint",
        "list",
        "list the checkpoints of an experiment",
        "checkpoint:listing",
        (),
        ("ls",),
    ),
    Command("checkpoint", "describe", "show a checkpoint", "checkpoint:describe"),
    Command("checkpoint", "download", "fetch and verify its files", "checkpoint:download"),
    Command("agent", "list", "list agents", "agent:listing", (), ("ls",)),
    Command("config", "check", "check a configuration file", "config:check", is_local=True),
    Command("cluster", "up", "start the local cluster", "cluster:up", ("up",), is_local=True),
    Command("cluster", "down", "stop the local cluster", "cluster:down", ("down",), is_local=True),
    Command(
        "cluster", "status", "show where the cluster is and its load", "cluster:status", ("status",)
    ),
)


def words_of(noun: str) -> dict[str, Command]:
    """The verbs of a noun, aliases included."""
    return {
        word: command
        for command in COMMANDS
        if command.noun == noun
        for word in (command.verb, *command.verb_aliases)
    }


def flat_words() -> dict[str, Command]:
    return {word: command for command in COMMANDS for word in command.flat}
