"""Rollback to the deployment before: the aliases of the functions move to its versions.

The versions of a deployment have one description. All functions move or none begins to: versions of
two deployments are not mixed for longer than it takes. The API moves last, so that a repetition
of what broke off goes on with the same deployment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.names import FUNCTIONS, LIVE, Names
from infra.stack_program import FunctionMove, Progress, RollbackFailed

_UNPUBLISHED = "$LATEST"
# By whose alias the present deployment is known.
_LAST = "api"


@dataclass(frozen=True)
class FunctionVersions:
    """The versions of a function, all, and the newest of each deployment that published some;
    `live` is the one that is called, and `revision` its alias's.
    """

    live: int
    revision: str
    published: tuple[int, ...]
    by_deployment: Mapping[str, int]

    @property
    def deployment(self) -> str:
        """The deployment whose version is called."""
        return next(
            (name for name, number in self.by_deployment.items() if number == self.live), ""
        )


def move_functions(
    names: Names, clients: Clients, progress: Progress, *, forward: bool = False
) -> list[FunctionMove]:
    """Move the functions' aliases to the deployment before the one that the API runs, or with
    `forward` to the newest; returns the moves.

    Raises:
        RollbackFailed: there is none, or AWS refused.
    """
    try:
        found = {name: read_versions(names, clients, name) for name in FUNCTIONS}
        target = _newest(found) if forward else _deployment_before(found)
        _refuse_incomplete(found, target)
        order = [*(name for name in FUNCTIONS if name != _LAST), _LAST]
        return [_move(names, clients, name, found[name], target, progress) for name in order]
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        raise RollbackFailed(f"AWS did not accept it, try again: {error}") from None


def read_versions(names: Names, clients: Clients, name: str) -> FunctionVersions:
    """Read the versions of a function.

    Raises:
        RollbackFailed: it has no alias, or is not there; what AWS refuses is raised as it is.
    """
    api, function = clients("lambda"), names.part(name)
    try:
        alias = api.get_alias(FunctionName=function, Name=LIVE)
        pages = api.get_paginator("list_versions_by_function").paginate(FunctionName=function)
        versions = [version for page in pages for version in page["Versions"]]
    except sdk.ClientError as error:
        if error.response["Error"]["Code"] != "ResourceNotFoundException":
            raise
        raise RollbackFailed(
            f"the function {function} has no alias {LIVE}: deploy the cluster with this version "
            "first, from which on there is a way back"
        ) from None
    published = sorted(
        int(version["Version"]) for version in versions if version["Version"] != _UNPUBLISHED
    )
    described = {version["Version"]: version.get("Description", "") for version in versions}
    by_deployment = {described[str(number)]: number for number in published}
    live, revision = int(alias["FunctionVersion"]), alias.get("RevisionId", "")
    return FunctionVersions(live, revision, tuple(published), by_deployment)


def _newest(found: Mapping[str, FunctionVersions]) -> str:
    versions = found[_LAST].by_deployment
    return max(versions, key=lambda name: versions[name])


def _deployment_before(found: Mapping[str, FunctionVersions]) -> str:
    """Return the deployment before the one that the API runs."""
    api = found[_LAST]
    earlier = {name: number for name, number in api.by_deployment.items() if number < api.live}
    if not earlier:
        raise RollbackFailed(
            f"there is no version before {api.live} of the API ({api.deployment}), so nothing "
            "was rolled back: deploy the release that you want instead"
        )
    return max(earlier, key=lambda name: earlier[name])


def _refuse_incomplete(found: Mapping[str, FunctionVersions], target: str) -> None:
    lacking = sorted(
        name
        for name, function_versions in found.items()
        if target not in function_versions.by_deployment
    )
    if lacking:
        raise RollbackFailed(
            f"{', '.join(lacking)} of the deployment {target!r} cannot be found, so nothing was "
            "rolled back: deploy the release that you want instead"
        )


def _move(
    names: Names,
    clients: Clients,
    name: str,
    found: FunctionVersions,
    target: str,
    progress: Progress,
) -> FunctionMove:
    function, version = names.part(name), found.by_deployment[target]
    if version != found.live:
        request: dict[str, Any] = {"FunctionVersion": str(version)}
        if found.revision:
            # A deployment meanwhile is not undone.
            request["RevisionId"] = found.revision
        clients("lambda").update_alias(FunctionName=function, Name=LIVE, **request)
        progress(f"{function}: version {found.live} -> {version}")
    return FunctionMove(name, str(found.live), str(version), target)
