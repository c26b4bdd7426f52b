"""Rollback: the functions' aliases move to the versions of the previous deployment.

All versions of a deployment have the same description. No function moves unless every function has
a version of the target, so that two deployments are mixed only while the aliases move. The API
moves last: after an interruption, a repeated rollback finds the same target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.names import FUNCTIONS, LIVE, Names
from infra.stack_program import FunctionMove, Progress, RollbackFailed, lacking_functions

_UNPUBLISHED = "$LATEST"
# The alias of this function decides which deployment counts as running.
_LAST = "api"


@dataclass(frozen=True)
class FunctionVersions:
    """The published versions of a function."""

    live: int
    """The version to which the alias LIVE points."""
    revision: str
    """The revision of the alias, for conditional updates; empty if unknown."""
    published: tuple[int, ...]
    """All versions, oldest first."""
    by_deployment: Mapping[str, int]
    """The newest version of each deployment, by the deployment's description."""

    @property
    def deployment(self) -> str:
        """The deployment of the live version; empty if a newer version has the same description."""
        return next(
            (name for name, number in self.by_deployment.items() if number == self.live), ""
        )


def move_functions(
    names: Names, clients: Clients, progress: Progress, *, forward: bool = False
) -> list[FunctionMove]:
    """Move all functions' aliases to the deployment before the API's, or the newest if `forward`.

    Return one move for each function, the API's last. A function that already runs the target is
    not changed, and its move has equal versions. Report each changed alias.

    Raises:
        RollbackFailed: no earlier deployment exists, a function lacks a version of the target, a
            function or alias is missing, or AWS refused. Only after a refusal can some functions
            have moved.
    """
    try:
        found = {name: read_versions(names, clients, name) for name in FUNCTIONS}
        target = _newest(found) if forward else _deployment_before(found)
        _refuse_incomplete(names, found, target)
        order = [*(name for name in FUNCTIONS if name != _LAST), _LAST]
        return [_move(names, clients, name, found[name], target, progress) for name in order]
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        raise RollbackFailed(f"AWS refused a request, try again: {error}") from None


def read_versions(names: Names, clients: Clients, name: str) -> FunctionVersions:
    """Return the published versions of the function `name`.

    Raises:
        RollbackFailed: the function or its alias does not exist, or the alias points to no
            published version.
        ClientError, BotoCoreError: AWS refused a call or could not be reached.
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
            "first; later deployments can be rolled back"
        ) from None
    if alias["FunctionVersion"] == _UNPUBLISHED:
        raise RollbackFailed(
            f"the alias {LIVE} of the function {function} points to {_UNPUBLISHED}, not to the "
            "version of a deployment: deploy the cluster first"
        )
    published = sorted(
        int(version["Version"]) for version in versions if version["Version"] != _UNPUBLISHED
    )
    described = {version["Version"]: version.get("Description", "") for version in versions}
    by_deployment = {described[str(number)]: number for number in published}
    live, revision = int(alias["FunctionVersion"]), alias.get("RevisionId", "")
    return FunctionVersions(live, revision, tuple(published), by_deployment)


def _newest(found: Mapping[str, FunctionVersions]) -> str:
    """Return the deployment of the API's newest version."""
    versions = found[_LAST].by_deployment
    return max(versions, key=lambda name: versions[name])


def _deployment_before(found: Mapping[str, FunctionVersions]) -> str:
    """Return the newest deployment with an older API version than the live version.

    Raise RollbackFailed if none exists.
    """
    api = found[_LAST]
    earlier = {name: number for name, number in api.by_deployment.items() if number < api.live}
    if not earlier:
        raise RollbackFailed(
            f"the API has no version before {api.live} ({api.deployment}), so nothing "
            "was rolled back: deploy the release that you want instead"
        )
    return max(earlier, key=lambda name: earlier[name])


def _refuse_incomplete(names: Names, found: Mapping[str, FunctionVersions], target: str) -> None:
    """Raise RollbackFailed if a function has no version of the deployment `target`."""
    lacking = sorted(
        name
        for name, function_versions in found.items()
        if target not in function_versions.by_deployment
    )
    if lacking:
        raise lacking_functions("aws", names.team, lacking, repr(target))


def _move(
    names: Names,
    clients: Clients,
    name: str,
    found: FunctionVersions,
    target: str,
    progress: Progress,
) -> FunctionMove:
    """Move a function's alias to the version of the deployment `target`; return the move.

    Report the move. Call and report nothing if the alias points there already. Raise ClientError if
    AWS refuses, also because a deployment has moved the alias meanwhile.
    """
    function, version = names.part(name), found.by_deployment[target]
    if version != found.live:
        request: dict[str, Any] = {"FunctionVersion": str(version)}
        if found.revision:
            # AWS refuses the update if a deployment has moved the alias meanwhile.
            request["RevisionId"] = found.revision
        clients("lambda").update_alias(FunctionName=function, Name=LIVE, **request)
        progress(f"{function}: version {found.live} -> {version}")
    return FunctionMove(name, str(found.live), str(version), target)
