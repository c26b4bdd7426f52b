"""Commands and options of Determined's `det` that detcloud lacks, with replacements."""

from __future__ import annotations

_PROJECTS = "a workspace or project exists while it has experiments: set `workspace` and \
`project` in a configuration, or use `detcloud experiment move`"
_GROUP_VERBS = ("archive", "create", "delete", "describe", "edit", "unarchive")
_TASK_VERBS = ("config", "describe", "kill", "list", "logs", "ls", "open", "set")
_OF_PROJECT = "`detcloud experiment list --workspace WORKSPACE --project PROJECT`"
_TASK_LISTS = "`detcloud job list` lists running and queued jobs; `detcloud command list`, \
`notebook list`, `shell list` and `trial list EXPERIMENT` also list ended runs"
_TASKS_OF_NOUNS = "tasks are trials, commands, notebooks and shells here: `detcloud job list` \
lists running jobs, `detcloud command run` runs a program, `detcloud trial logs TRIAL` prints a log"
_USERS = (
    "a user is the name on an access token: `detcloud token create USER`, `detcloud token list`"
)
_ROLES = "each token has a role: `detcloud token create --role`"
_TENSORBOARD = "`detcloud tensorboard start EXPERIMENT` runs TensorBoard on this machine until \
Ctrl-C; the cluster itself runs no TensorBoard"
_SERVER = "`detcloud up` starts the local cluster and `detcloud down` stops the local cluster"
_CLOUDS = ("aws", "gcp")
_STACKS = (
    "detcloud keeps no list of clusters: each Pulumi.TEAM.yaml describes a team's cluster, and \
`detcloud status` shows the configured cluster"
)
_SETTINGS = "`detcloud cluster apply FILE` applies a cluster configuration, and \
`detcloud config check --cluster FILE` checks the file"
_CURL = "`curl -H 'Authorization: Bearer TOKEN' URL/api/v1/...`: `detcloud status` shows the URL, \
`detcloud token create` creates a token, and /api/v1/openapi.json describes the API"
_USE = "`detcloud cost --by user --since DAY --until DAY` shows the cost of each user; \
`detcloud job list` shows the jobs that have slots now"
_TEMPLATES = "a template holds settings for several configurations: `detcloud template set`"
_LOCAL_LOGS = "`detcloud master logs` prints the local cluster's log"

_CLUSTER = "`--url URL` or DETCLOUD_URL names the cluster"
_IDENTITY = "DETCLOUD_TOKEN identifies you; `detcloud user whoami` shows your user"

REPLACED_OPTIONS = {"-m": _CLUSTER, "--master": _CLUSTER, "-u": _IDENTITY, "--user": _IDENTITY}
"""Hints for options of `det` before the command, by the option."""
REPLACED_NOUNS = {
    "auth": "access needs only a token: `detcloud token login`",
    "config-policies": _TEMPLATES,
    "cp": _TEMPLATES,
    "oauth": "access needs only a token: `detcloud token create`",
    "rbac": _ROLES,
    "res": _USE,
    "resources": _USE,
    "task": _TASKS_OF_NOUNS,
    "user-group": _ROLES,
}
"""Hints for nouns of `det` that detcloud lacks, by the noun."""
REPLACED_VERBS = {
    "task list": _TASK_LISTS,
    "task ls": _TASK_LISTS,
    "task logs": "`detcloud trial logs TRIAL`, `detcloud command logs ID` (also `notebook`, "
    "`shell`) and `detcloud logs EXPERIMENT` print logs",
    "task config": "`detcloud command config ID` (also `notebook`, `shell`) prints the settings",
    "task kill": "`detcloud command kill ID` (also `notebook`, `shell`) and `detcloud trial kill "
    "TRIAL` kill a run",
    "task create": "`detcloud command run --config-file FILE` runs a program on the cluster",
    "task fork": "`detcloud command config ID` prints the settings of a command, and `detcloud "
    "command run --config-file FILE` runs a command with these settings",
    "task pause": "`detcloud pause EXPERIMENT` pauses an experiment; commands cannot be paused",
    "task unpause": "`detcloud activate EXPERIMENT` continues an experiment that was paused",
    "task cleanup-logs": "`detcloud retention cleanup` deletes logs whose retention has ended",
    "deploy local": _SERVER,
    **{f"dev {verb}": _CURL for verb in ("curl", "c", "bindings", "b")},
    "dev auth-token": "`detcloud token create` prints a new token; commands read DETCLOUD_TOKEN",
    "deploy gke-experimental": "agents need no Kubernetes: `detcloud deploy gcp --team TEAM`",
    **{f"deploy {cloud} up": f"`detcloud deploy {cloud} --team TEAM`" for cloud in _CLOUDS},
    **{
        f"deploy {cloud} down": f"`detcloud deploy destroy {cloud} --team TEAM`"
        for cloud in _CLOUDS
    },
    **{f"deploy {cloud} {verb}": _STACKS for cloud in _CLOUDS for verb in ("list", "ls")},
    **{f"deploy {cloud} dump-master-config-template": _SETTINGS for cloud in _CLOUDS},
    "model config": "`detcloud status` shows the cluster; `m` means `model`, not `master`",
    "model logs": f"{_LOCAL_LOGS}; `m` means `model`, not `master`",
    **{f"{noun} {verb}": _PROJECTS for noun in ("workspace", "project") for verb in _GROUP_VERBS},
    "workspace edit": "`detcloud workspace link-with-agent-user` sets the user and the group of a "
    f"workspace's trials; {_PROJECTS}",
    "workspace bindings": _PROJECTS,
    "workspace list-members": _ROLES,
    "workspace list-pools": "`detcloud resource-pool list`: all workspaces share all pools",
    "workspace list-projects": "`detcloud project list WORKSPACE`",
    "workspace resource-quota": "`detcloud experiment set max-slots` limits an experiment",
    "project list-experiments": _OF_PROJECT,
    "master cluster-message": "cluster messages are not supported",
    "master config": "`detcloud status` shows the cluster; `detcloud up --help` shows its options",
    "template set-value": "`detcloud template set NAME FILE` replaces a template",
    "resource-pool bindings": "all workspaces share all pools",
    **{f"tensorboard {verb}": _TENSORBOARD for verb in _TASK_VERBS},
    "token edit": "create a new token with `detcloud token create`, then revoke the old token",
    "user activate": _USERS,
    "user change-password": _USERS,
    "user create": _USERS,
    "user deactivate": _USERS,
    "user edit": _USERS,
    "user list": f"{_USERS}; the list of tokens names the users",
    "user login": "`detcloud token login` stores a token",
    "user ls": _USERS,
    "user rename": _USERS,
}
"""Hints for commands of `det` that detcloud lacks, by noun and verbs. Other verbs of a noun in
REPLACED_NOUNS have the hint of the noun.
"""


def find_replacement(words: list[str]) -> tuple[str, str] | None:
    """Return the beginning of `words` that is a replaced command of `det`, and the text on the
    replacement.

    The longest match wins; a noun alone matches only if detcloud lacks the whole noun. Return None
    if no replaced command of `det` begins `words`.

    Args:
        words: a command without `det`, at least one word. The first word is a full noun, not an
            alias.
    """
    for length in (3, 2):
        typed = " ".join(words[:length])
        if typed in REPLACED_VERBS:
            return typed, REPLACED_VERBS[typed]
    if words[0] in REPLACED_NOUNS:
        return words[0], REPLACED_NOUNS[words[0]]
    return None
