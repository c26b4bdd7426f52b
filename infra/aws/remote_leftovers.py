"""Finds remaining resources on AWS of a cluster that runs in another cloud."""

from collections.abc import Callable, Iterator
from typing import Any

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.instance_ends import error_code, list_instances, list_templates
from infra.aws.names import Names

_MISSING = "NoSuchEntity"


def find_remote_leftovers(names: Names, clients: Clients) -> list[str]:
    """Return a line for each remaining role, profile, launch template and instance.

    Return [] if nothing remains. If the credentials belong to another account or AWS refuses,
    return one line that says so.
    """
    where = f"in the account {names.account}"
    try:
        caller = clients("sts").get_caller_identity()["Account"]
        if caller != names.account:
            return [
                f"unknown resources {where}: the credentials belong to the account {caller}; "
                "search with credentials of the right account"
            ]
        return [f"{part} {where}" for part in _parts(names, clients)]
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        return [f"unknown resources {where}: the search failed: {error}"]


def _parts(names: Names, clients: Clients) -> Iterator[str]:
    """Yield a text like `the role NAME` for each remaining resource of the cluster.

    Search for the launcher's and the instances' role, the instance profile, the launch templates
    and the instances. Yield nothing if none remains. Raise the SDK's errors.
    """
    iam, profile = clients("iam"), names.role("instance")
    for role in (names.role("launcher"), names.role("instance")):
        if _is_there(iam.get_role, RoleName=role):
            yield f"the role {role}"
    if _is_there(iam.get_instance_profile, InstanceProfileName=profile):
        yield f"the instance profile {profile}"
    yield from (f"the launch template {template}" for template in list_templates(names, clients))
    yield from (
        f"the instance {instance['InstanceId']}" for instance in list_instances(names, clients)
    )


def _is_there(read: Callable[..., Any], **named: str) -> bool:
    """Return whether `read` finds the named IAM resource. Raise the SDK's other errors."""
    try:
        read(**named)
    except sdk.ClientError as error:
        if error_code(error) != _MISSING:
            raise
        return False
    return True
