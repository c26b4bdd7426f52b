"""Rollback to the deployment before: the services' requests go to its revisions.

The revisions of a deployment have one label. All functions move or none begins to: revisions of two
deployments are not mixed for longer than it takes. The API moves last, so that whoever repeats what
broke off goes on with the same deployment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.gcp.functions import DEPLOYMENT_LABEL
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError, read_pages
from infra.gcp.names import FUNCTIONS, Names
from infra.stack_program import FunctionMove, Progress, RollbackFailed

RUN: Final = "https://run.googleapis.com/v2"
# By whose revision the present deployment is known.
_LAST: Final = "api"
_TO_REVISION: Final = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"


@dataclass(frozen=True)
class FunctionRevisions:
    """The revisions of a function, the oldest first, by the deployment that made them, the newest
    of each; `live` is the one that is called, `etag` its service's, and `made` are all revisions,
    the oldest first.
    """

    live: str
    etag: str
    by_deployment: Mapping[str, str]
    made: tuple[str, ...] = ()

    @property
    def deployments(self) -> list[str]:
        """The deployments, the oldest first."""
        return list(self.by_deployment)

    @property
    def deployment(self) -> str:
        """The deployment whose revision is called."""
        return next((name for name, it in self.by_deployment.items() if it == self.live), "")


def move_functions(
    names: Names, api: GoogleApi, progress: Progress, *, forward: bool = False
) -> list[FunctionMove]:
    """Move the requests of the functions to the deployment before the one that the API runs, or
    with `forward` to the newest; returns the moves.

    Raises:
        RollbackFailed: there is none, or Google refused.
    """
    try:
        found = {name: read_revisions(names, api, name) for name in FUNCTIONS}
        target = found[_LAST].deployments[-1] if forward else _deployment_before(found)
        _refuse_incomplete(found, target)
        order = [*(name for name in FUNCTIONS if name != _LAST), _LAST]
        return [_move(names, api, name, found[name], target, progress) for name in order]
    except GoogleError as error:
        raise RollbackFailed(f"Google did not take it, try again: {error}") from None


def service_url(names: Names, name: str) -> str:
    """Return the address of a function's service, as Cloud Run's interface has it."""
    place = f"projects/{names.project}/locations/{names.region}"
    return f"{RUN}/{place}/services/{names.part(name)}"


def read_revisions(names: Names, api: GoogleApi, name: str) -> FunctionRevisions:
    """Return the revisions of a function. Raises GoogleError, RollbackFailed."""
    url = service_url(names, name)
    try:
        service = api.call("GET", url)
        pages = list(read_pages(api, f"{url}/revisions"))
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
        raise RollbackFailed(f"there is no service {names.part(name)}: deploy it first") from None
    revisions = [it for page in pages for it in page.get("revisions", ())]
    revisions.sort(key=lambda it: str(it["createTime"]))
    by_deployment: dict[str, str] = {}
    for revision in revisions:
        deployment = revision.get("labels", {}).get(DEPLOYMENT_LABEL)
        if deployment:
            # One that was deployed again is as new as its newest revision.
            by_deployment.pop(deployment, None)
            by_deployment[deployment] = _short(revision["name"])
    if not by_deployment:
        raise RollbackFailed(f"the service {names.part(name)} has no revision of a deployment")
    made = tuple(_short(it["name"]) for it in revisions)
    return FunctionRevisions(
        _live_revision(service), str(service.get("etag", "")), by_deployment, made
    )


def _live_revision(service: Mapping[str, Any]) -> str:
    """Return the revision that all requests go to."""
    for target in service.get("traffic", ()):
        if target.get("revision") and target.get("percent") == 100:
            return _short(target["revision"])
    return _short(service.get("latestReadyRevision", ""))


def _short(name: str) -> str:
    return str(name).rpartition("/")[2]


def _deployment_before(found: Mapping[str, FunctionRevisions]) -> str:
    """Return the deployment before the one that the API runs."""
    api = found[_LAST]
    earlier = api.deployments[: api.deployments.index(api.deployment)] if api.deployment else []
    if not earlier:
        raise RollbackFailed(
            f"there is no revision before {api.live} of the API, so nothing was moved: deploy the "
            "release that you want instead"
        )
    return earlier[-1]


def _refuse_incomplete(found: Mapping[str, FunctionRevisions], target: str) -> None:
    lacking = sorted(name for name, it in found.items() if target not in it.by_deployment)
    if lacking:
        raise RollbackFailed(
            f"{', '.join(lacking)} of the deployment {target} are gone, so nothing was moved: "
            "deploy the release that you want instead"
        )


def _move(
    names: Names,
    api: GoogleApi,
    name: str,
    found: FunctionRevisions,
    target: str,
    progress: Progress,
) -> FunctionMove:
    service, revision = names.part(name), found.by_deployment[target]
    if revision != found.live:
        traffic = [{"type": _TO_REVISION, "revision": revision, "percent": 100}]
        body: dict[str, Any] = {"traffic": traffic}
        if found.etag:
            # A deployment meanwhile is not undone.
            body["etag"] = found.etag
        api.call("PATCH", f"{service_url(names, name)}?updateMask=traffic", body)
        progress(f"{service}: {found.live} -> {revision}")
    return FunctionMove(name, found.live, revision, target)
