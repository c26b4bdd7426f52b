"""The setting `otherClouds` of a stack: its cluster's remote accounts in other clouds."""

import json
from collections.abc import Mapping
from typing import Any

from control_plane.config.pools import ClusterConfig
from infra.clouds import REMOTE_ACCOUNTS, open_remote_account_in
from infra.findings import Finding
from infra.remote_accounts import Launcher, RemoteAccount
from infra.stack_program import REMOTE_SETTING, DrainReport, DroppedAccount, Progress


def parse_other_clouds(text: str, own: str) -> dict[str, Any]:
    """Parse the setting of a stack in the cloud `own`. Raises ValueError with what was expected."""
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    others = [cloud for cloud in REMOTE_ACCOUNTS if cloud != own]
    if not isinstance(given, dict) or not set(given) <= set(others):
        raise ValueError(f"a map of what there is in {' or '.join(others)}")
    return given


def find_remote_problems(given: Mapping[str, Any], launcher: Launcher) -> list[str]:
    """Return the problems in the description of a remote account, a line each."""
    problems = []
    for cloud, value in given.items():
        try:
            open_remote_account_in(cloud, value, launcher)
        except ValueError as error:
            place = f"detcloud:otherClouds: {cloud} is {json.dumps(value)[:80]}"
            problems.append(f"{place}: expected {error}")
    return problems


def open_remote_accounts(given: Mapping[str, Any], launcher: Launcher) -> dict[str, RemoteAccount]:
    """Return the remote accounts that the setting describes. Raises ValueError."""
    return {cloud: open_remote_account_in(cloud, item, launcher) for cloud, item in given.items()}


def describe_remote_accounts(remotes: Mapping[str, RemoteAccount]) -> str:
    """Return the description of the remote accounts for the functions, "" if there are none."""
    described = {cloud: remote.variables() for cloud, remote in remotes.items()}
    return json.dumps(described, separators=(",", ":")) if described else ""


def describe_deployed(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the output of a stack that has the setting, none without one."""
    return {REMOTE_SETTING: json.dumps(given, sort_keys=True)} if given else {}


def render_commands(remotes: Mapping[str, RemoteAccount], cluster: ClusterConfig) -> str:
    """Return the scripts that make the remote accounts, "" for none."""
    return "\n".join(remote.commands(cluster) for remote in remotes.values())


def check_remote_accounts(
    remotes: Mapping[str, RemoteAccount], cluster: ClusterConfig
) -> list[Finding]:
    """Return what there is to say of the remote accounts."""
    return [finding for remote in remotes.values() for finding in remote.find_findings(cluster)]


def render_removals(remotes: Mapping[str, RemoteAccount]) -> str:
    """Return the scripts that remove the remote accounts, "" for none."""
    return "\n".join(remote.removal_commands() for remote in remotes.values())


def list_remote_leftovers(remotes: Mapping[str, RemoteAccount]) -> list[str]:
    """Return the remaining resources of the remote accounts, a line each."""
    return [line for remote in remotes.values() for line in remote.find_leftovers()]


def list_dropped_accounts(
    before: str, own: str, launcher: Launcher, present: Mapping[str, RemoteAccount]
) -> list[DroppedAccount]:
    """Return the remote accounts of a former text of the setting that are at none of the present
    places, as far as anything is left there. Raises DrainFailed where nobody can tell.
    """
    former = open_remote_accounts(parse_other_clouds(before, own), launcher)
    places = {remote.place for remote in present.values()}
    found = []
    for cloud, remote in former.items():
        if remote.place in places:
            continue
        instances, leftovers = remote.list_instances(), remote.find_leftovers()
        if leftovers:
            removal = remote.removal_commands()
            found.append(
                DroppedAccount(cloud, remote.place, tuple(instances), tuple(leftovers), removal)
            )
    return found


def drain_remote_accounts(
    remotes: Mapping[str, RemoteAccount], report: DrainReport, progress: Progress
) -> DrainReport:
    """End what the cluster made by itself in its remote accounts, whose launcher is stopped by now,
    and add it to the report. Raises DrainFailed.
    """
    reports = [report, *(remote.drain(progress) for remote in remotes.values())]
    return DrainReport(
        sum(drain_report.instances for drain_report in reports),
        sum(item.templates for item in reports),
    )
