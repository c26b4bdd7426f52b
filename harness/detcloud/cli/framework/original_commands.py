"""Commands of the original, `det`, that have another name here, and what replaces them."""

from __future__ import annotations

_PROJECTS = "workspaces and projects are names, there while experiments are in them: `workspace` \
and `project` of a configuration, `detcloud experiment move`, `detcloud experiment list --project`"
_GROUP_VERBS = ("archive", "create", "delete", "describe", "edit", "unarchive")
_TASK_VERBS = ("config", "describe", "kill", "list", "logs", "ls", "open", "set")
_OF_PROJECT = "`detcloud experiment list --workspace WORKSPACE --project PROJECT`"
_TASK_LISTS = "`detcloud job list` lists what runs or waits for slots; `detcloud command list`, \
`notebook list`, `shell list` and `trial list EXPERIMENT` also list what has ended"
_TASKS_OF_NOUNS = "tasks are trials, commands, notebooks and shells here: `detcloud job list` \
lists what runs, `detcloud command run` runs a program, `detcloud trial logs TRIAL` prints a log"
_NO_SSH = "`detcloud shell open ID` opens a shell; there is no SSH"
_USERS = "a user is a name with tokens: `detcloud token create USER`, `detcloud token list`"
_ROLES = "a token is a user's or an admin's: `detcloud token create --role`"
_LOG_RETENTION = "logs stay as long as their experiment; `detcloud experiment delete` ends both"
_TENSORBOARD = "`detcloud tensorboard start EXPERIMENT` runs TensorBoard on this machine until \
Ctrl-C, and the cluster has none to list or to kill"
_SERVER = "`detcloud up` starts a cluster here and `detcloud down` ends it"
_CLOUDS = ("aws", "gcp")
_STACKS = "each team's cluster has its folder with a Pulumi.TEAM.yaml; `detcloud status` shows one"
_SETTINGS = "`detcloud cluster apply FILE` takes a cluster's configuration, \
`detcloud config check --cluster FILE` checks one"
_CURL = "`curl -H 'Authorization: Bearer TOKEN' URL/api/v1/...`: `detcloud status` shows the URL, \
`detcloud token create` makes a token, and /api/v1/openapi.json describes the API"
_USE = "`detcloud cost --by user --since DAY --until DAY` sums up what was used, in dollars; \
`detcloud job list` shows who has slots now"
_LOCAL_LOGS = "`detcloud master logs` prints the local cluster's log"

_CLUSTER = "`--url URL` or DETCLOUD_URL names the cluster"
_IDENTITY = "DETCLOUD_TOKEN says who you are, see `detcloud user whoami`"

REPLACED_OPTIONS = {"-m": _CLUSTER, "--master": _CLUSTER, "-u": _IDENTITY, "--user": _IDENTITY}
REPLACED_NOUNS = {
    "auth": "only a token is needed: `detcloud token login`",
    "config-policies": "templates hold what configurations share: `detcloud template set`",
    "cp": "templates hold what configurations share: `detcloud template set`",
    "dev": _CURL,
    "oauth": "only a token is needed: `detcloud token create`",
    "rbac": _ROLES,
    "res": _USE,
    "resources": _USE,
    "task": _TASKS_OF_NOUNS,
    "user-group": _ROLES,
}
REPLACED_VERBS = {
    "task list": _TASK_LISTS,
    "task ls": _TASK_LISTS,
    "task logs": "`detcloud trial logs TRIAL`, `detcloud command logs ID` (also `notebook`, "
    "`shell`) and `detcloud logs EXPERIMENT` print logs",
    "task config": "`detcloud command config ID` (also `notebook`, `shell`) prints the settings",
    "task kill": "`detcloud command kill ID` (also `notebook`, `shell`) and `detcloud trial kill "
    "TRIAL` end what runs",
    "task create": "`detcloud command run --config-file FILE` runs a program on the cluster",
    "task fork": "`detcloud command config ID` prints the settings of a command, and `detcloud "
    "command run --config-file FILE` runs them again",
    "task pause": "`detcloud pause EXPERIMENT` pauses an experiment; commands cannot be paused",
    "task unpause": "`detcloud activate EXPERIMENT` continues an experiment that was paused",
    "task cleanup-logs": _LOG_RETENTION,
    "deploy local": _SERVER,
    "dev auth-token": "`detcloud token create` prints a token once; DETCLOUD_TOKEN holds one",
    "deploy gke-experimental": "agents need no Kubernetes: `detcloud deploy gcp --team TEAM`",
    **{f"deploy {cloud} up": f"`detcloud deploy {cloud} --team TEAM`" for cloud in _CLOUDS},
    **{
        f"deploy {cloud} down": f"`detcloud deploy destroy {cloud} --team TEAM`"
        for cloud in _CLOUDS
    },
    **{f"deploy {cloud} {verb}": _STACKS for cloud in _CLOUDS for verb in ("list", "ls")},
    **{f"deploy {cloud} dump-master-config-template": _SETTINGS for cloud in _CLOUDS},
    "model config": "`detcloud status` shows the cluster: `m` is a model here, not the master",
    "model logs": f"{_LOCAL_LOGS}: `m` is a model here, not the master",
    "experiment set log-retention": _LOG_RETENTION,
    "trial set log-retention": _LOG_RETENTION,
    **{f"{noun} {verb}": _PROJECTS for noun in ("workspace", "project") for verb in _GROUP_VERBS},
    "workspace bindings": _PROJECTS,
    "workspace list-members": _ROLES,
    "workspace list-pools": "`detcloud resource-pool list`: all workspaces share all pools",
    "workspace list-projects": "`detcloud project list WORKSPACE`",
    "workspace resource-quota": "`detcloud experiment set max-slots` limits an experiment",
    "project list-experiments": _OF_PROJECT,
    "master cluster-message": "cluster messages are not supported",
    "master config": "`detcloud status` shows the cluster; `detcloud up --help` its options",
    **{f"shell {verb}": _NO_SSH for verb in ("show-ssh-command", "show_ssh_command")},
    "template set-value": "`detcloud template set NAME FILE` replaces a template",
    "resource-pool bindings": "all workspaces share all pools",
    **{f"tensorboard {verb}": _TENSORBOARD for verb in _TASK_VERBS},
    "token edit": "create another with `detcloud token create` and revoke this one",
    "user activate": _USERS,
    "user change-password": _USERS,
    "user create": _USERS,
    "user deactivate": _USERS,
    "user edit": _USERS,
    "user link-with-agent-user": "trials run as the agent's user",
    "user list": f"{_USERS}; the list of tokens names the users",
    "user login": "`detcloud token login` keeps a token",
    "user ls": _USERS,
    "user rename": _USERS,
}


def find_replacement(words: list[str]) -> tuple[str, str] | None:
    """The command of the original that `words` begin with, and what to use instead.

    The noun in `words` is spelled out. None when the original has no such command either.
    """
    for length in (3, 2):
        typed = " ".join(words[:length])
        if typed in REPLACED_VERBS:
            return typed, REPLACED_VERBS[typed]
    if words[0] in REPLACED_NOUNS:
        return words[0], REPLACED_NOUNS[words[0]]
    return None
