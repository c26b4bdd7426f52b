"""Every command, once: its noun form, its flat forms and where its code is.

The code of a command is imported when that command runs, so that `detcloud --help` stays fast: the
place `create:create` means the functions `create_arguments` and `create` of `detcloud.cli.create`.
A word of Python gets an underscore: `continue_` goes with `continue_arguments`.
"""

from __future__ import annotations

from typing import NamedTuple

OK = 0
FAILED = 1
USAGE = 2
REFUSED = 3
UNREACHABLE = 4
INTERRUPTED = 130

EXIT_CODES = {
    OK: "it worked; what was waited for or followed ended COMPLETED",
    FAILED: "it failed here, ended in another state, or the answer to a question was no",
    USAGE: "the words mean nothing: a wrong command, option or value, or file to preview",
    REFUSED: "the cluster refused: not found, not allowed, invalid, or in the wrong state",
    UNREACHABLE: "no cluster is configured or runs here, or it gave no answer after retries",
    INTERRUPTED: "Ctrl-C",
}


class Command(NamedTuple):
    """`detcloud NOUN VERB`, with other verbs and the flat forms that mean the same."""

    noun: str
    """Empty for a command that has a flat form only."""
    verb: str
    """One word, or two as in `label add`."""
    summary: str
    place: str
    flat: tuple[str, ...] = ()
    verb_aliases: tuple[str, ...] = ()
    is_local: bool = False
    """Whether it speaks to no cluster but this machine's own, so that it takes no `--url`."""


NOUNS = {
    "experiment": "submit, follow and steer experiments",
    "trial": "look at trials",
    "checkpoint": "list, download and delete checkpoints",
    "job": "look at the queue and change its order",
    "resource-pool": "look at the resource pools and change them",
    "agent": "look at the machines and take them out of use",
    "slot": "look at the machines' slots and take them out of use",
    "template": "keep parts of configurations on the cluster",
    "token": "make and revoke access tokens",
    "user": "see who you are to the cluster",
    "config": "check experiment configurations",
    "cluster": "start and stop the local cluster",
    "master": "look at the cluster's server",
    "debug": "look into a cluster that misbehaves",
    "deploy": "put a team's cluster into a cloud",
}
NOUN_ALIASES = {
    "e": "experiment",
    "t": "trial",
    "c": "checkpoint",
    "j": "job",
    "rp": "resource-pool",
    "a": "agent",
    "s": "slot",
    "tpl": "template",
    "tkn": "token",
    "u": "user",
    "d": "deploy",
}

_EXPERIMENT = (
    Command("experiment", "create", "submit an experiment", "create:create", ("create",)),
    Command(
        "experiment", "list", "list experiments", "experiment:listing", ("list", "ls"), ("ls",)
    ),
    Command("experiment", "describe", "show experiments", "experiment:describe", ("describe",)),
    Command(
        "experiment", "follow", "watch an experiment until it ends", "follow:follow", ("follow",)
    ),
    Command("experiment", "wait", "wait until an experiment ended", "experiment:wait", ("wait",)),
    Command(
        "experiment", "logs", "print the logs of its trials", "logs:experiment_logs", ("logs",)
    ),
    Command(
        "experiment",
        "metrics",
        "show curves of its best trials",
        "metrics:experiment_metrics",
        ("metrics",),
    ),
    Command(
        "experiment",
        "curves",
        "print its trials' validations, to be simulated again",
        "experiment:curves",
    ),
    Command("experiment", "config", "print its configuration", "experiment:config"),
    Command(
        "experiment",
        "pause",
        "checkpoint its trials and free their slots",
        "lifecycle:pause",
        ("pause",),
    ),
    Command(
        "experiment",
        "activate",
        "go on after a pause",
        "lifecycle:activate",
        ("activate",),
        ("unpause",),
    ),
    Command(
        "experiment", "cancel", "end it at the next checkpoints", "lifecycle:cancel", ("cancel",)
    ),
    Command("experiment", "kill", "end it at once", "lifecycle:kill", ("kill",)),
    Command(
        "experiment",
        "continue",
        "train on after it ended",
        "lifecycle:continue_",
        ("continue",),
    ),
    Command("experiment", "archive", "leave it out of lists", "lifecycle:archive", ("archive",)),
    Command(
        "experiment",
        "unarchive",
        "show it in lists again",
        "lifecycle:unarchive",
        ("unarchive",),
    ),
    Command(
        "experiment",
        "delete",
        "delete it with all it stored",
        "lifecycle:delete",
        ("delete",),
    ),
    Command(
        "experiment",
        "download",
        "fetch its best checkpoints",
        "download:experiment_download",
        ("download",),
    ),
    Command("experiment", "download-model-def", "fetch its model code", "download:model_def"),
    Command(
        "experiment",
        "delete-tb-files",
        "delete its files for TensorBoard",
        "lifecycle:delete_tensorboard",
    ),
    Command("experiment", "label add", "add labels", "experiment_set:label_add"),
    Command("experiment", "label remove", "remove labels", "experiment_set:label_remove"),
    Command("experiment", "set name", "call it something else", "experiment_set:name"),
    Command("experiment", "set description", "describe it otherwise", "experiment_set:description"),
    Command(
        "experiment",
        "set max-slots",
        "limit the slots it may have at once",
        "experiment_set:max_slots",
    ),
    Command(
        "experiment",
        "set weight",
        "change its share under fair share",
        "experiment_set:weight",
    ),
    Command(
        "experiment",
        "set priority",
        "change its place under the priority scheduler",
        "experiment_set:priority",
    ),
    Command(
        "experiment",
        "set max-cost",
        "limit what it may cost",
        "experiment_set:max_cost",
    ),
    Command(
        "experiment",
        "set gc-policy",
        "keep more or fewer of its checkpoints",
        "experiment_set:gc_policy",
    ),
    Command("experiment", "history", "tell what happened and why", "history:history", ("history",)),
    Command(
        "experiment",
        "replay",
        "check that all would be decided the same again",
        "history:replay",
        ("replay",),
    ),
    Command("experiment", "list-trials", "list its trials", "trial:listing", (), ("lt",)),
    Command(
        "experiment", "list-checkpoints", "list its checkpoints", "checkpoint:listing", (), ("lc",)
    ),
)

_TRIAL = (
    Command("trial", "list", "list the trials of an experiment", "trial:listing", (), ("ls",)),
    Command("trial", "describe", "show a trial", "trial:describe"),
    Command("trial", "logs", "print the log of a trial", "logs:trial_logs"),
    Command("trial", "metrics", "show its metrics or draw them", "metrics:trial_metrics"),
    Command("trial", "kill", "end it at once; the search goes on", "trial:kill"),
    Command("trial", "download", "fetch one of its checkpoints", "download:trial_download"),
    Command(
        "trial", "support-bundle", "pack all that is known of it into a file", "support:bundle"
    ),
)

_CHECKPOINT = (
    Command(
        "checkpoint",
        "list",
        "list the checkpoints of an experiment",
        "checkpoint:listing",
        (),
        ("ls",),
    ),
    Command("checkpoint", "describe", "show a checkpoint", "checkpoint:describe"),
    Command("checkpoint", "files", "list its files", "checkpoint:files"),
    Command("checkpoint", "download", "fetch and verify its files", "checkpoint:download"),
    Command("checkpoint", "delete", "delete checkpoints", "checkpoint:delete", (), ("rm",)),
)

_QUEUE = (
    Command("job", "list", "list the queue of a resource pool", "job:listing", (), ("ls",)),
    Command("job", "update", "change the place of a job", "job:update", (), ("u",)),
    Command("job", "update-batch", "change the places of several jobs", "job:update_batch"),
    Command("resource-pool", "list", "list resource pools", "resource_pool:listing", (), ("ls",)),
    Command("resource-pool", "describe", "show a resource pool", "resource_pool:describe"),
    Command("resource-pool", "create", "add a resource pool", "resource_pool:create"),
    Command("resource-pool", "set", "change a resource pool", "resource_pool:set_"),
    Command("resource-pool", "drain", "let it start nothing more", "resource_pool:drain"),
    Command("resource-pool", "undrain", "let it start work again", "resource_pool:undrain"),
    Command(
        "resource-pool",
        "remove",
        "remove a resource pool that is not used",
        "resource_pool:remove",
        (),
        ("rm",),
    ),
)

_CLUSTER = (
    Command("agent", "list", "list agents", "agent:listing", (), ("ls",)),
    Command("agent", "describe", "show an agent and its slots", "agent:describe"),
    Command("agent", "enable", "let trials be placed on it again", "agent:enable"),
    Command("agent", "disable", "place no more trials on it", "agent:disable"),
    Command("slot", "list", "list slots", "agent:slots", (), ("ls",)),
    Command("slot", "enable", "let trials be placed on it again", "agent:enable_slot"),
    Command("slot", "disable", "place no more trials on it", "agent:disable_slot"),
    Command("template", "list", "list templates", "template:listing", (), ("ls",)),
    Command("template", "describe", "print a template", "template:describe"),
    Command("template", "create", "add a template", "template:create"),
    Command("template", "set", "add or replace a template", "template:set_"),
    Command("template", "remove", "delete a template", "template:remove", (), ("rm",)),
    Command("token", "list", "list tokens", "token:listing", (), ("ls",)),
    Command("token", "describe", "show tokens", "token:describe"),
    Command("token", "create", "make a token", "token:create"),
    Command("token", "revoke", "end a token", "token:revoke"),
    Command("token", "login", "keep a token for later commands", "token:login"),
    Command("user", "whoami", "show who you are to the cluster", "token:whoami"),
    Command("user", "logout", "forget the token that was kept", "token:logout", is_local=True),
    Command("config", "check", "check a configuration file", "config:check", is_local=True),
    Command("cluster", "up", "start the local cluster", "cluster:up", ("up",), is_local=True),
    Command("cluster", "down", "stop the local cluster", "cluster:down", ("down",), is_local=True),
    Command(
        "cluster", "status", "show where the cluster is and its load", "cluster:status", ("status",)
    ),
    Command(
        "cluster",
        "apply",
        "make the resource pools what a file says",
        "resource_pool:apply",
    ),
    Command("master", "info", "show the cluster's server", "cluster:info"),
    Command("master", "logs", "print the local cluster's log", "server_log:logs", is_local=True),
    Command("debug", "dump", "print rows of the state table", "debug:dump", is_local=True),
    Command("deploy", "aws", "make or change a team's cluster on AWS", "deploy:aws", is_local=True),
    Command(
        "deploy",
        "export",
        "write a team's cluster down for Terraform",
        "deploy:export",
        is_local=True,
    ),
)

_FLAT = (
    Command(
        "",
        "preview-search",
        "show what a search would train, before it does",
        "preview:preview",
        ("preview-search",),
        is_local=True,
    ),
    Command(
        "",
        "simulate",
        "run a search in virtual time, on curves made up or recorded",
        "simulate:simulate",
        ("simulate",),
    ),
    Command(
        "",
        "simulate cluster",
        "run whole clusters in virtual time, under faults",
        "simulate_cluster:simulate_cluster",
        ("simulate cluster",),
        is_local=True,
    ),
    Command(
        "",
        "completion",
        "print a script that completes commands",
        "completion:completion",
        ("completion",),
        is_local=True,
    ),
    Command("", "cost", "show what was spent, and on what", "cost:cost", ("cost",)),
    Command("", "version", "show versions", "cluster:version", ("version",)),
)

COMMANDS = (*_EXPERIMENT, *_TRIAL, *_CHECKPOINT, *_QUEUE, *_CLUSTER, *_FLAT)


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
