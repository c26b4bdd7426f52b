"""The nouns of the command line, with summaries and short forms."""

from __future__ import annotations

NOUNS = {
    "experiment": "submit, watch and control experiments",
    "schedule": "submit experiments at fixed times",
    "trial": "inspect trials",
    "command": "run programs on the cluster",
    "notebook": "run JupyterLab on a cluster on this machine",
    "shell": "open shells on a cluster on this machine",
    "checkpoint": "list, download, upload, verify, pin and delete checkpoints",
    "model": "keep checkpoints as versions of named models",
    "workspace": "list the workspaces that group experiments",
    "project": "list the projects of workspaces",
    "tensorboard": "show experiments in TensorBoard",
    "job": "inspect the queue and change its order",
    "resource-pool": "inspect and change the resource pools",
    "agent": "add, inspect, upgrade and remove agents",
    "alarm": "list the alarms of the cluster, and print the runbook",
    "monitoring": "connect Prometheus and Grafana to a cluster",
    "retention": "delete old logs and metrics",
    "slot": "inspect, enable and disable the agents' slots",
    "report": "write reports with charts for other users",
    "template": "store parts of configurations on the cluster",
    "webhook": "announce events to other services",
    "token": "create and revoke access tokens",
    "user": "show your user and role, and link users with users of the machines",
    "config": "check experiment configurations",
    "cluster": "start, stop and back up the local cluster",
    "server": "run a cluster that other machines of yours call",
    "page": "copy the web page to another web server",
    "master": "inspect the cluster's server",
    "debug": "debug a cluster",
    "deploy": "deploy a team's cluster to a cloud",
}

NOUN_ALIASES = {
    "e": "experiment",
    "t": "trial",
    "cmd": "command",
    "c": "checkpoint",
    "m": "model",
    "w": "workspace",
    "p": "project",
    "tb": "tensorboard",
    "j": "job",
    "rp": "resource-pool",
    "a": "agent",
    "s": "slot",
    "tpl": "template",
    "tkn": "token",
    "u": "user",
    "d": "deploy",
}


def noun_spellings(noun: str) -> list[str]:
    """Return the noun, then the short form if NOUN_ALIASES has a short form of the noun."""
    return [noun, *(short for short, full in NOUN_ALIASES.items() if full == noun)]
