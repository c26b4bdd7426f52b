"""The setting `otherClouds` of a stack, and operations on all remote accounts of a stack."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from control_plane.config.pools import ClusterConfig
from infra.clouds import REMOTE_ACCOUNTS, open_remote_account_in
from infra.findings import Finding
from infra.remote_accounts import Launcher, RemoteAccount
from infra.stack_program import REMOTE_SETTING, DrainFailed, DrainReport, DroppedAccount, Progress

AccountOpener = Callable[[Mapping[str, Any], Launcher], Mapping[str, RemoteAccount]]
"""Opens the remote accounts that a setting describes, by the cloud's name."""


def describe_other_clouds(own: str) -> str:
    """Return the words for users about a valid setting of a stack in the cloud `own`."""
    return f"a map from {' or '.join(_other_clouds(own))} to the description of a remote account"


def _other_clouds(own: str) -> list[str]:
    """Return the names of the clouds that can have a remote account of a stack in `own`."""
    return [cloud for cloud in REMOTE_ACCOUNTS if cloud != own]


def parse_other_clouds(text: str, own: str) -> dict[str, Any]:
    """Return the map from each other cloud's name to the description of the remote account.

    `text` is the setting's JSON, and `own` the stack's own cloud. The descriptions are not checked.
    Raise ValueError with a text of what was expected if `text` is no map of other clouds.
    """
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not set(given) <= set(_other_clouds(own)):
        raise ValueError(describe_other_clouds(own))
    return given


def find_remote_problems(given: Mapping[str, Any], launcher: Launcher) -> list[str]:
    """Return a line for each invalid description of a remote account in the setting `given`.

    `given` maps a cloud to a description, and `launcher` is the cluster's function that launches
    instances. Return [] if all are valid. No cloud is called. Raise KeyError for an unknown cloud.
    """
    problems = []
    for cloud, value in given.items():
        try:
            open_remote_account_in(cloud, value, launcher)
        except ValueError as error:
            place = f"detcloud:otherClouds: {cloud} is {json.dumps(value)[:80]}"
            problems.append(f"{place}: expected {error}")
    return problems


def open_remote_accounts(given: Mapping[str, Any], launcher: Launcher) -> dict[str, RemoteAccount]:
    """Return the remote accounts that the setting `given` describes, by the cloud's name.

    No cloud is called. Return {} for an empty setting. `given` maps a cloud to a description.
    `launcher` is the cluster's function that launches instances, which the accounts trust. Raise
    ValueError with a text of what was expected if a description is invalid, and KeyError for an
    unknown cloud.
    """
    return {cloud: open_remote_account_in(cloud, item, launcher) for cloud, item in given.items()}


def describe_remote_accounts(remotes: Mapping[str, RemoteAccount]) -> str:
    """Return the JSON by which the cluster's functions open the remote accounts; "" without any."""
    described = {cloud: remote.variables() for cloud, remote in remotes.items()}
    return json.dumps(described, separators=(",", ":")) if described else ""


def describe_deployed(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the stack's output with the deployed setting as JSON; {} if the setting is empty."""
    return {REMOTE_SETTING: json.dumps(given, sort_keys=True)} if given else {}


def render_commands(remotes: Mapping[str, RemoteAccount], cluster: ClusterConfig) -> str:
    """Return the joined scripts that create the remote accounts, or "" without any."""
    return "\n".join(remote.commands(cluster) for remote in remotes.values())


def check_remote_accounts(
    remotes: Mapping[str, RemoteAccount], cluster: ClusterConfig
) -> list[Finding]:
    """Call each cloud, and return the findings of all remote accounts in the order of `remotes`.

    A failed read becomes a warning. Return [] without remote accounts.
    """
    return [finding for remote in remotes.values() for finding in remote.find_findings(cluster)]


def render_removals(remotes: Mapping[str, RemoteAccount]) -> str:
    """Return the joined scripts that remove the remote accounts, or "" without any."""
    return "\n".join(remote.removal_commands() for remote in remotes.values())


def list_remote_leftovers(remotes: Mapping[str, RemoteAccount]) -> list[str]:
    """Call each cloud, and return a line for each remaining resource in the remote accounts.

    An account that cannot be read has one line that says so. Return [] if nothing remains.
    """
    return [line for remote in remotes.values() for line in remote.find_leftovers()]


def list_dropped_accounts(
    before: str,
    own: str,
    launcher: Launcher,
    present: Mapping[str, RemoteAccount],
    open_accounts: AccountOpener = open_remote_accounts,
) -> list[DroppedAccount]:
    """Return the formerly deployed remote accounts that the settings no longer have.

    `before` is the former text of the setting, `own` the stack's cloud and `present` the current
    remote accounts. `launcher` is the cluster's function that launches instances. `open_accounts`
    opens the accounts that a setting describes. Each former account is read, and accounts without
    remaining resources are left out. Raise DrainFailed if an account cannot be read, or if `before`
    is invalid, as a setting of another version may be.
    """
    try:
        former = open_accounts(parse_other_clouds(before, own), launcher)
    except ValueError as error:
        raise DrainFailed(
            f"this version cannot read the deployed setting: expected {error}; deploy with the "
            "version that deployed the setting, or delete the remote instances by hand"
        ) from None
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
    """Terminate the cluster's instances and delete launch templates in all remote accounts.

    The cluster's tick must be stopped. Return a new report: `report` plus the removed instances
    and templates. Raise DrainFailed at the first account that cannot be drained; earlier accounts
    stay drained.
    """
    reports = [report, *(remote.drain(progress) for remote in remotes.values())]
    return DrainReport(
        sum(drain_report.instances for drain_report in reports),
        sum(item.templates for item in reports),
    )
