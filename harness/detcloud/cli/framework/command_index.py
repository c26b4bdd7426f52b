"""The index of all commands: words, summary and module of each.

A command's module is imported when the command runs, so that `detcloud --help` stays fast. The
module registers the functions of its commands in `HANDLERS`, by `Command.name`.
"""

from __future__ import annotations

from detcloud.cli.framework.command import Command
from detcloud.cli.framework.deployable_clouds import CLOUDS

_EXPERIMENT = (
    Command("experiment", "create", "submit an experiment", "create", ("create",)),
    Command("experiment", "fork", "submit a changed copy of an experiment", "fork"),
    Command("experiment", "list", "list experiments", "experiment", ("list", "ls"), ("ls",)),
    Command("experiment", "describe", "show experiments", "experiment", ("describe",)),
    Command("experiment", "follow", "watch an experiment until it ends", "follow", ("follow",)),
    Command("experiment", "debug", "attach a debugger to an experiment's trial", "debugger"),
    Command("experiment", "wait", "wait until an experiment has ended", "experiment", ("wait",)),
    Command("experiment", "logs", "print the logs of an experiment's trials", "logs", ("logs",)),
    Command(
        "experiment",
        "metrics",
        "show curves of an experiment's best trials",
        "metrics",
        ("metrics",),
    ),
    Command(
        "experiment",
        "curves",
        "print the recorded curves of an experiment, for `simulate`",
        "experiment",
    ),
    Command("experiment", "rungs", "show the progress of trials through rungs or rounds", "rungs"),
    Command("experiment", "importance", "show how much hyperparameters matter", "importance"),
    Command("experiment", "config", "print the configuration of an experiment", "experiment"),
    Command(
        "experiment",
        "pause",
        "save checkpoints of an experiment's trials and free their slots",
        "lifecycle",
        ("pause",),
    ),
    Command(
        "experiment",
        "activate",
        "resume a paused experiment",
        "lifecycle",
        ("activate",),
        ("unpause",),
    ),
    Command(
        "experiment",
        "cancel",
        "end an experiment after its trials have saved a checkpoint",
        "lifecycle",
        ("cancel",),
    ),
    Command("experiment", "kill", "end an experiment immediately", "lifecycle", ("kill",)),
    Command("experiment", "continue", "continue an ended experiment", "lifecycle", ("continue",)),
    Command(
        "experiment", "archive", "hide an ended experiment from lists", "lifecycle", ("archive",)
    ),
    Command(
        "experiment",
        "unarchive",
        "show an archived experiment in lists again",
        "lifecycle",
        ("unarchive",),
    ),
    Command(
        "experiment", "delete", "delete an ended experiment and its data", "lifecycle", ("delete",)
    ),
    Command(
        "experiment",
        "download",
        "download the best checkpoints of an experiment",
        "download",
        ("download",),
    ),
    Command(
        "experiment", "download-model-def", "download the model code of an experiment", "download"
    ),
    Command(
        "experiment", "delete-tb-files", "delete an experiment's TensorBoard files", "lifecycle"
    ),
    Command("experiment", "label add", "add labels to an experiment", "experiment_settings"),
    Command(
        "experiment", "label remove", "remove labels from an experiment", "experiment_settings"
    ),
    Command("experiment", "move", "move experiments to another project", "project"),
    Command("experiment", "view list", "list saved views of experiments", "experiment_view"),
    Command("experiment", "view save", "save a view of the list", "experiment_view"),
    Command("experiment", "view delete", "delete a saved view", "experiment_view"),
    Command("experiment", "set metadata", "set metadata of an experiment", "experiment_settings"),
    Command("experiment", "set name", "rename an experiment", "experiment_settings"),
    Command(
        "experiment",
        "set description",
        "change the description of an experiment",
        "experiment_settings",
    ),
    Command(
        "experiment",
        "set max-slots",
        "limit the slots that an experiment may use at once",
        "experiment_settings",
    ),
    Command(
        "experiment",
        "set weight",
        "change the fair-share weight of an experiment",
        "experiment_settings",
    ),
    Command(
        "experiment", "set priority", "change the priority of an experiment", "experiment_settings"
    ),
    Command("experiment", "set max-cost", "limit the cost of an experiment", "experiment_settings"),
    Command(
        "experiment",
        "set gc-policy",
        "change how many checkpoints of an experiment are kept",
        "experiment_settings",
    ),
    Command("experiment", "set log-retention", "set how long logs are kept", "retention"),
    Command("experiment", "set metrics-retention", "set how long metrics are kept", "retention"),
    Command(
        "experiment",
        "history",
        "show what happened to an experiment, and why",
        "history",
        ("history",),
    ),
    Command(
        "experiment",
        "replay",
        "replay the journals of an experiment and compare the decisions",
        "history",
        ("replay",),
    ),
    Command("experiment", "list-trials", "list the trials of an experiment", "trial", (), ("lt",)),
    Command(
        "experiment",
        "list-checkpoints",
        "list the checkpoints of an experiment",
        "checkpoint",
        (),
        ("lc",),
    ),
)

_TRIAL = (
    Command("trial", "list", "list the trials of an experiment", "trial", (), ("ls",)),
    Command("trial", "describe", "show a trial", "trial"),
    Command("trial", "logs", "print the log of a trial", "logs"),
    Command("trial", "stacks", "print the stacks of a hanging trial", "stacks"),
    Command("trial", "metrics", "show or plot the metrics of a trial", "metrics"),
    Command("trial", "ranks", "list the ranks of a trial that have separate metrics", "metrics"),
    Command("trial", "set metadata", "set metadata of a trial", "trial"),
    Command("trial", "set log-retention", "set how long a trial's logs are kept", "retention"),
    Command("trial", "kill", "end a trial immediately; the search continues", "trial"),
    Command("trial", "download", "download a checkpoint of a trial", "download"),
    Command(
        "trial",
        "support-bundle",
        "pack the log, metrics and history of a trial into a file",
        "support_bundle",
    ),
)


def _run_commands(noun: str, *own: tuple[str, str]) -> tuple[Command, ...]:
    """Return the commands of a noun for runs: `command`, `notebook` or `shell`.

    Args:
        own: verbs and summaries of the commands that start or open a run. The first command is
            listed first.
    """
    first, *others = [Command(noun, verb, summary, noun) for verb, summary in own]
    return (
        first,
        Command(noun, "list", f"list {noun}s", noun, (), ("ls",)),
        Command(noun, "describe", f"show {noun}s", noun),
        *others,
        Command(noun, "logs", f"print the log of a {noun}", noun),
        Command(noun, "kill", f"end {noun}s immediately", noun),
        Command(noun, "config", f"print the configuration of a {noun}", noun),
        Command(noun, "set priority", f"change the priority of a {noun}", noun),
    )


_COMMAND = _run_commands("command", ("run", "run a program and print its output"))
_NOTEBOOK = _run_commands(
    "notebook",
    ("start", "start JupyterLab and open it"),
    ("open", "print the address of a notebook and open it"),
)
_SHELL = (
    *_run_commands(
        "shell",
        ("start", "start a shell on the cluster and open it"),
        ("open", "open a shell, or run a program in it"),
    ),
    Command(
        "shell",
        "show-ssh-command",
        "print the command that opens a shell with SSH",
        "ssh",
        (),
        ("show_ssh_command",),
    ),
)

_CHECKPOINT = (
    Command(
        "checkpoint", "list", "list the checkpoints of an experiment", "checkpoint", (), ("ls",)
    ),
    Command("checkpoint", "describe", "show a checkpoint", "checkpoint"),
    Command("checkpoint", "files", "list the files of a checkpoint", "checkpoint"),
    Command(
        "checkpoint",
        "download",
        "download a checkpoint and verify its files",
        "checkpoint_transfer",
    ),
    Command("checkpoint", "verify", "verify the stored files of a checkpoint", "checkpoint"),
    Command(
        "checkpoint", "upload", "upload a folder as a checkpoint of a trial", "checkpoint_transfer"
    ),
    Command("checkpoint", "set metadata", "set metadata of a checkpoint", "checkpoint"),
    Command(
        "checkpoint", "pin", "keep checkpoints until they are unpinned", "checkpoint_retention"
    ),
    Command("checkpoint", "unpin", "unpin checkpoints", "checkpoint_retention"),
    Command("checkpoint", "delete", "delete checkpoints", "checkpoint_retention", (), ("rm",)),
)

_MODEL = (
    Command("model", "list", "list registered models", "model", (), ("ls",)),
    Command("model", "describe", "show a model, or a version of it", "model"),
    Command("model", "create", "register a name for checkpoints", "model"),
    Command("model", "set", "change a model's description, labels or metadata", "model"),
    Command("model", "move", "move a model to another workspace", "model"),
    Command("model", "archive", "hide a model from lists", "model"),
    Command("model", "unarchive", "show an archived model in lists again", "model"),
    Command("model", "delete", "delete a model and its versions", "model"),
    Command("model", "list-versions", "list the versions of a model", "model"),
    Command(
        "model", "register-version", "register a checkpoint as the next version of a model", "model"
    ),
    Command("model", "set-version", "change a version's name, notes, labels or metadata", "model"),
    Command("model", "delete-version", "delete a version and release its checkpoint", "model"),
    Command(
        "model", "export", "export a version to a folder, with the code that loads it", "model"
    ),
)

_GROUPS = (
    Command("workspace", "list", "list workspaces", "project", (), ("ls",)),
    Command("workspace", "link-with-agent-user", "run its trials as a user", "agent_user"),
    Command("workspace", "unlink-agent-user", "run its trials as their owners", "agent_user"),
    Command("project", "list", "list projects", "project", (), ("ls",)),
)

_QUEUE = (
    Command("tensorboard", "start", "run TensorBoard on this machine", "tensorboard"),
    Command("tensorboard", "download", "download TensorBoard files of trials", "tensorboard"),
    Command("job", "list", "list the queue of a resource pool", "job", (), ("ls",)),
    Command(
        "job", "update", "change a job's priority, weight, pool or position", "job", (), ("u",)
    ),
    Command("job", "update-batch", "change several jobs at once", "job"),
    Command("resource-pool", "list", "list resource pools", "resource_pool", (), ("ls",)),
    Command("resource-pool", "describe", "show a resource pool", "resource_pool"),
    Command("resource-pool", "create", "add a resource pool", "resource_pool"),
    Command("resource-pool", "set", "change a resource pool", "resource_pool"),
    Command("resource-pool", "drain", "stop a resource pool from starting trials", "resource_pool"),
    Command("resource-pool", "undrain", "let a resource pool start trials again", "resource_pool"),
    Command(
        "resource-pool",
        "remove",
        "remove a resource pool that is not used",
        "resource_pool",
        (),
        ("rm",),
    ),
)

_CLUSTER = (
    Command("agent", "list", "list agents", "agent", (), ("ls",)),
    Command("agent", "describe", "show an agent and its slots", "agent"),
    Command("agent", "enable", "place trials on an agent again", "agent"),
    Command("agent", "disable", "stop placing trials on an agent", "agent"),
    Command("agent", "add", "install agents on machines", "agent_add"),
    Command("agent", "join-line", "print a line that adds a machine", "agent_add"),
    Command("agent", "upgrade", "let agents start the cluster's code", "agent_upgrade"),
    Command("agent", "remove", "remove an agent", "agent_upgrade", (), ("rm",)),
    Command("alarm", "list", "list the raised alarms", "alarm", (), ("ls",)),
    Command("alarm", "describe", "show an alarm and its page of the runbook", "alarm"),
    Command("monitoring", "grafana", "print a Grafana board", "monitoring", is_local=True),
    Command("monitoring", "prometheus", "print a scrape configuration", "monitoring"),
    Command("slot", "list", "list slots", "slot", (), ("ls",)),
    Command("slot", "enable", "place trials on a slot again", "slot"),
    Command("slot", "disable", "stop placing trials on a slot", "slot"),
    Command("template", "list", "list templates", "template", (), ("ls",)),
    Command("template", "describe", "print a template", "template"),
    Command("template", "create", "add a template", "template"),
    Command("template", "set", "add or replace a template", "template"),
    Command("template", "remove", "delete a template", "template", (), ("rm",)),
    Command("schedule", "list", "list schedules", "schedule", (), ("ls",)),
    Command("schedule", "describe", "show a schedule and its last runs", "schedule"),
    Command("schedule", "pause", "submit no more experiments", "schedule"),
    Command("schedule", "activate", "submit experiments again", "schedule"),
    Command("schedule", "run-now", "submit an experiment at once", "schedule"),
    Command("schedule", "delete", "delete a schedule", "schedule", (), ("rm",)),
    Command("retention", "preview", "show what a cleanup would delete", "retention"),
    Command("retention", "cleanup", "delete expired logs and metrics", "retention"),
    Command("report", "list", "list reports", "report", (), ("ls",)),
    Command("report", "show", "print the text of a report", "report", (), ("describe",)),
    Command("report", "create", "create a report", "report"),
    Command("report", "edit", "change the text, the title or the sharing", "report"),
    Command("report", "delete", "delete a report", "report", (), ("rm",)),
    Command("webhook", "list", "list webhooks", "webhook", (), ("ls",)),
    Command("webhook", "create", "create a webhook", "webhook"),
    Command("webhook", "describe", "show a webhook", "webhook"),
    Command("webhook", "edit", "change a webhook", "webhook"),
    Command("webhook", "test", "send a test event to a webhook", "webhook"),
    Command("webhook", "deliveries", "list the deliveries to a webhook", "webhook"),
    Command("webhook", "retry", "deliver events to a webhook again", "webhook"),
    Command("webhook", "delete", "delete a webhook", "webhook", (), ("rm",)),
    Command("token", "list", "list tokens", "token", (), ("ls",)),
    Command("token", "describe", "show tokens", "token"),
    Command("token", "create", "create a token", "token"),
    Command("token", "revoke", "revoke a token", "token"),
    Command("token", "login", "sign in to a cluster and store the token", "login", ("login",)),
    Command("user", "whoami", "show your user and role", "user"),
    Command("user", "list-agent-users", "list the users that trials run as", "agent_user"),
    Command("user", "link-with-agent-user", "run a user's trials as a user", "agent_user"),
    Command("user", "unlink-agent-user", "run a user's trials as the default user", "agent_user"),
    Command("user", "logout", "remove the stored token", "user", is_local=True),
    Command("config", "check", "check a configuration file", "config"),
    Command("cluster", "up", "start the local cluster", "cluster", ("up",), is_local=True),
    Command("cluster", "down", "stop the local cluster", "cluster", ("down",), is_local=True),
    Command("cluster", "open", "open the web page and sign in", "page", ("open",)),
    Command("page", "export", "write the files of the web page, for another web server", "page"),
    Command("cluster", "status", "show the cluster's address and load", "cluster", ("status",)),
    Command("cluster", "apply", "apply a cluster configuration file", "resource_pool"),
    Command(
        "cluster",
        "backup",
        "back up the local cluster's state to a file",
        "backup",
        ("backup",),
        is_local=True,
    ),
    Command(
        "cluster", "restore", "restore the local cluster", "backup", ("restore",), is_local=True
    ),
    Command("server", "run", "run a server in the foreground", "server", is_local=True),
    Command(
        "server", "install", "write a systemd service of a server", "server_install", is_local=True
    ),
    Command("server", "uninstall", "remove the service", "server_install", is_local=True),
    Command("server", "status", "show a server's address and health", "server", is_local=True),
    Command("server", "code", "print a code to sign in", "server", is_local=True),
    Command("master", "info", "show the cluster's server", "master"),
    Command("master", "logs", "print the local cluster's log", "master", is_local=True),
    Command("debug", "dump", "print rows of the state table", "debug", is_local=True),
    *(
        Command(
            "deploy",
            cloud.name,
            f"create or update a team's cluster on {cloud.title}",
            "deploy",
            is_local=True,
        )
        for cloud in CLOUDS
    ),
    *(
        Command("deploy", f"{verb} {cloud.name}", summary, "deploy", is_local=True)
        for cloud in CLOUDS
        for verb, summary in (
            ("check", f"check whether a team's cluster can run in an account of {cloud.title}"),
            ("upgrade", f"preview and apply changes to a cluster on {cloud.title}"),
            ("rollback", f"roll a cluster on {cloud.title} back to the previous deployment"),
            ("prune", f"remove old versions that no rollback of a cluster on {cloud.title} needs"),
            ("policy", f"print the permissions that deploying to {cloud.title} needs"),
            ("trust", f"print the commands that let other clouds trust a cluster on {cloud.title}"),
            ("destroy", f"delete a team's cluster on {cloud.title}, with all its data"),
        )
    ),
    *(
        Command("deploy", f"{verb} {cloud.name}", summary, f"deploy_{verb}", is_local=is_local)
        for cloud in CLOUDS
        for verb, is_local, summary in (
            ("verify", False, f"test a deployed cluster on {cloud.title}, for a few cents"),
            ("restore", True, f"restore the state of a cluster on {cloud.title} after a loss"),
        )
    ),
    Command("deploy", "export", "export a team's cluster for Terraform", "deploy", is_local=True),
    Command(
        "deploy",
        "trust local",
        "print the commands that let clouds trust a server on own machines",
        "deploy_server_trust",
    ),
)

_FLAT = (
    Command(
        "",
        "preview-search",
        "preview what a search would train",
        "preview_search",
        ("preview-search",),
        is_local=True,
    ),
    Command(
        "",
        "simulate",
        "run a search in virtual time, on generated or recorded curves",
        "simulate",
        ("simulate",),
    ),
    Command(
        "",
        "simulate cluster",
        "run whole clusters in virtual time, with injected faults",
        "simulate_cluster",
        ("simulate cluster",),
        is_local=True,
    ),
    Command(
        "",
        "completion",
        "print a script that completes commands",
        "completion",
        ("completion",),
        is_local=True,
    ),
    Command("", "cost", "show costs by experiment, user, pool or day", "cost", ("cost",)),
    Command("", "usage", "show the use of slots and wasted money", "usage", ("usage",)),
    Command("", "dev", "work in a folder on a machine of the cluster", "dev", ("dev",)),
    Command("", "ssh", "open a terminal on the machine of a running trial", "ssh", ("ssh",)),
    Command("", "ssh config", "write settings for SSH clients and editors", "ssh", ("ssh config",)),
    Command("", "ssh proxy", "carry an SSH client's connection", "ssh", ("ssh proxy",)),
    Command("", "tunnel", "reach ports of a running trial", "tunnel", ("tunnel",)),
    Command("", "version", "show versions", "version", ("version",)),
)

COMMANDS = (
    *_EXPERIMENT,
    *_TRIAL,
    *_COMMAND,
    *_NOTEBOOK,
    *_SHELL,
    *_CHECKPOINT,
    *_MODEL,
    *_GROUPS,
    *_QUEUE,
    *_CLUSTER,
    *_FLAT,
)


def commands_by_verb(noun: str) -> dict[str, Command]:
    """Return the commands of a noun by verb. A command with aliases has an entry for each spelling.

    The noun "" has the commands without a noun. An unknown noun and a noun's short form have no
    commands: the result is empty.
    """
    return {
        word: command
        for command in COMMANDS
        if command.noun == noun
        for word in (command.verb, *command.verb_aliases)
    }


def flat_commands() -> dict[str, Command]:
    """Return the commands that can be typed without a noun, by each flat form. A command with
    several flat forms has several entries, and a form may have two words.
    """
    return {word: command for command in COMMANDS for word in command.flat}
