"""Rollback: the requests to the functions go to the revisions of the previous deployment.

All revisions of a deployment have the same label. No function moves unless every function has a
revision of the target, so that two deployments are mixed only while the requests move. A function
counts as moved after Google has finished the operation. The API moves after all others: after an
interruption, a repeated rollback finds the same target.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.drain_clock import Clock
from infra.gcp.functions import DEPLOYMENT_LABEL
from infra.gcp.google_api import NOT_FOUND, GoogleApi, GoogleError, read_pages
from infra.gcp.names import Names
from infra.stack_program import FunctionMove, Progress, RollbackFailed, lacking_functions
from lambdas.gcp.function_names import FUNCTIONS

RUN: Final = "https://run.googleapis.com/v2"
# The live revision of this function decides which deployment counts as running.
_LAST: Final = "api"
MOVE_SECONDS_MAX: Final = 300.0
LOOK_SECONDS: Final = 2.0
_TO_REVISION: Final = "TRAFFIC_TARGET_ALLOCATION_TYPE_REVISION"


@dataclass(frozen=True)
class FunctionRevisions:
    """The revisions of a function."""

    live: str
    """The revision that receives all requests."""
    etag: str
    """The etag of the service, for conditional updates; empty if unknown."""
    by_deployment: Mapping[str, str]
    """The newest revision of each deployment, by the deployment's label, oldest first."""
    made: tuple[str, ...] = ()
    """All revisions, oldest first."""

    @property
    def deployments(self) -> list[str]:
        """The labels of the deployments, oldest first."""
        return list(self.by_deployment)

    @property
    def deployment(self) -> str:
        """The label of the live revision's deployment.

        Empty if the live revision is not the newest revision of a deployment.
        """
        return next(
            (name for name, revision in self.by_deployment.items() if revision == self.live), ""
        )


def move_functions(
    names: Names,
    api: GoogleApi,
    progress: Progress,
    *,
    forward: bool = False,
    clock: Clock | None = None,
) -> list[FunctionMove]:
    """Move all functions' requests to the deployment before the API's, or the newest if `forward`.

    Return one move for each function, the API's last. A function that already runs the target is
    not changed, and its move has equal revisions. Report each changed function.

    Raises:
        RollbackFailed: no earlier deployment exists, a function lacks a revision of the target, a
            service is missing, or Google refused. After a refusal, the message names the functions
            that have moved.
    """
    try:
        found = {name: read_revisions(names, api, name) for name in FUNCTIONS}
    except GoogleError as error:
        raise RollbackFailed(f"nothing was rolled back, try again: Google said {error}") from None
    target = found[_LAST].deployments[-1] if forward else _deployment_before(found)
    _refuse_incomplete(names, found, target)
    others = [name for name in FUNCTIONS if name != _LAST]
    moved: list[FunctionMove] = []
    refused: dict[str, str] = {}
    for group in (others, [_LAST]):
        if not refused:
            moving = _AliasMoves(names, api, found, target, clock or Clock())
            done, refused = moving.move(group, progress)
            moved += done
    if refused:
        raise RollbackFailed(_describe_rest(names, moved, refused, target))
    return moved


def service_url(names: Names, name: str) -> str:
    """Return the URL of a function's service in Cloud Run's API."""
    place = f"projects/{names.project}/locations/{names.region}"
    return f"{RUN}/{place}/services/{names.part(name)}"


def read_revisions(names: Names, api: GoogleApi, name: str) -> FunctionRevisions:
    """Return the revisions of the function `name`.

    Raise RollbackFailed if the service does not exist or no revision belongs to a deployment. Raise
    GoogleError for other refusals.
    """
    url = service_url(names, name)
    try:
        service = api.call("GET", url)
        pages = list(read_pages(api, f"{url}/revisions"))
    except GoogleError as error:
        if error.status != NOT_FOUND:
            raise
        raise RollbackFailed(f"no service {names.part(name)} exists: deploy first") from None
    revisions = [item for page in pages for item in page.get("revisions", ())]
    revisions.sort(key=lambda item: str(item["createTime"]))
    by_deployment: dict[str, str] = {}
    for revision in revisions:
        deployment = revision.get("labels", {}).get(DEPLOYMENT_LABEL)
        if deployment:
            # A repeated deployment counts as new as the newest revision.
            by_deployment.pop(deployment, None)
            by_deployment[deployment] = _short(revision["name"])
    if not by_deployment:
        raise RollbackFailed(f"the service {names.part(name)} has no revision of a deployment")
    made = tuple(_short(item["name"]) for item in revisions)
    return FunctionRevisions(
        _live_revision(service), str(service.get("etag", "")), by_deployment, made
    )


def _live_revision(service: Mapping[str, Any]) -> str:
    """Return the revision that receives all requests at present.

    A move in progress does not count. If no revision receives all requests, return the latest ready
    revision, or "" without any.
    """
    for target in service.get("trafficStatuses") or service.get("traffic", ()):
        if target.get("revision") and target.get("percent") == 100:
            return _short(target["revision"])
    return _short(service.get("latestReadyRevision", ""))


def _short(name: str) -> str:
    """Return the last part of a path."""
    return str(name).rpartition("/")[2]


def _deployment_before(found: Mapping[str, FunctionRevisions]) -> str:
    """Return the target of a rollback: the deployment before the API's.

    Return the API's deployment itself if another function runs a newer deployment, which then has
    to move back. Raise RollbackFailed if no earlier deployment exists.
    """
    api = found[_LAST]
    at = api.deployments.index(api.deployment) if api.deployment else 0
    earlier = api.deployments[:at]
    if api.deployment and any(
        function_revisions.deployment not in (*earlier, api.deployment)
        for function_revisions in found.values()
    ):
        return api.deployment
    if not earlier:
        raise RollbackFailed(
            f"the API has no revision before {api.live}, so nothing was rolled back: "
            "deploy the release that you want instead"
        )
    return earlier[-1]


def _refuse_incomplete(names: Names, found: Mapping[str, FunctionRevisions], target: str) -> None:
    """Raise RollbackFailed if a function has no revision of the deployment `target`."""
    lacking = sorted(
        name
        for name, function_revisions in found.items()
        if target not in function_revisions.by_deployment
    )
    if lacking:
        raise lacking_functions("gcp", names.team, lacking, target)


class _AliasMoves:
    """Moves of functions to the deployment `target`; `found` has the revisions by function."""

    def __init__(
        self,
        names: Names,
        api: GoogleApi,
        found: Mapping[str, FunctionRevisions],
        target: str,
        clock: Clock,
    ) -> None:
        self._names = names
        self._api = api
        self._found = found
        self._target = target
        self._clock = clock

    def move(
        self, functions: Sequence[str], progress: Progress
    ) -> tuple[list[FunctionMove], dict[str, str]]:
        """Move the functions; return (completed moves, reasons of failed functions by name).

        Start all moves first, then wait for all together, at most MOVE_SECONDS_MAX. Report each
        changed function. A function that already runs the target is a completed move.
        """
        operations: dict[str, str] = {}
        refused: dict[str, str] = {}
        for name in functions:
            try:
                operations[name] = self._order(name)
            except GoogleError as error:
                refused[name] = str(error)
        moved = []
        until = self._clock.seconds() + MOVE_SECONDS_MAX
        for name, operation in operations.items():
            before, after = self._found[name].live, self._revision(name)
            try:
                self._wait(operation, until)
            except GoogleError as error:
                refused[name] = str(error)
                continue
            if operation:
                progress(f"{self._names.part(name)}: {before} -> {after}")
            moved.append(FunctionMove(name, before, after, self._target))
        return moved, refused

    def _revision(self, name: str) -> str:
        """Return a function's revision of the target."""
        return self._found[name].by_deployment[self._target]

    def _order(self, name: str) -> str:
        """Start the move of a function, and return the name of Google's operation.

        Return "" if the function already runs the target. Raise GoogleError.
        """
        found, revision = self._found[name], self._revision(name)
        if revision == found.live:
            return ""
        traffic = [{"type": _TO_REVISION, "revision": revision, "percent": 100}]
        body: dict[str, Any] = {"traffic": traffic}
        if found.etag:
            # Google refuses the update if a deployment has changed the service meanwhile.
            body["etag"] = found.etag
        url = f"{service_url(self._names, name)}?updateMask=traffic"
        return str(self._api.call("PATCH", url, body)["name"])

    def _wait(self, operation: str, until: float) -> None:
        """Wait until an operation has ended; return at once for "".

        Raise GoogleError if the operation failed, or has not ended at the clock's time `until`.
        """
        while operation:
            found = self._api.call("GET", f"{RUN}/{operation}")
            if found.get("done"):
                error = found.get("error")
                if error:
                    raise GoogleError(int(error.get("code", 0)), str(error.get("message", "")))
                return
            if self._clock.seconds() >= until:
                raise GoogleError(0, f"the move did not end in {MOVE_SECONDS_MAX:g} s")
            self._clock.sleep(LOOK_SECONDS)


def _describe_rest(
    names: Names, moved: Sequence[FunctionMove], refused: Mapping[str, str], target: str
) -> str:
    """Return the message about an interrupted rollback: moved, refused and untouched functions."""
    there = {move.function for move in moved}
    lines = [f"{names.part(name)} did not move: {why}" for name, why in refused.items()]
    lines += [
        f"{names.part(name)} was not told to move"
        for name in FUNCTIONS
        if name not in there and name not in refused
    ]
    at = ", ".join(names.part(function) for function in FUNCTIONS if function in there) or "none"
    first = f"functions of the deployment {target}: {at}; repeat the rollback to move the others"
    return "\n".join([first, *lines])
