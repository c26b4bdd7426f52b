"""Deletes revisions of functions that no rollback needs any more.

The repository's own cleanup policy deletes images.
"""

from typing import Final

from infra.gcp.google_api import GoogleApi, GoogleError
from infra.gcp.names import Names
from infra.gcp.rollback import FunctionRevisions, read_revisions, service_url
from infra.stack_program import Progress, PruneFailed, RollbackFailed
from lambdas.gcp.function_names import FUNCTIONS

# A rollback moves back by a single deployment; users who need an older release deploy that release.
DEPLOYMENTS_KEPT: Final = 5
# Deployments are ordered by the revisions of this function.
_FIRST: Final = "api"


def prune_revisions(names: Names, api: GoogleApi, progress: Progress) -> int:
    """Delete the functions' old revisions, and return the number of deleted revisions.

    Keep the revisions of the newest DEPLOYMENTS_KEPT deployments, of the running deployment and of
    the deployment before the running one. Report the number if any revision was deleted.

    Raises:
        PruneFailed: a service is missing or Google refused. Some revisions may be deleted; call
            again for the rest.
    """
    removed = 0
    try:
        found = {name: read_revisions(names, api, name) for name in FUNCTIONS}
        kept = _deployments_to_keep(found[_FIRST])
        for name, revisions in found.items():
            for revision in _revisions_to_remove(revisions, kept):
                api.call("DELETE", f"{service_url(names, name)}/revisions/{revision}")
                removed += 1
    except (GoogleError, RollbackFailed) as error:
        raise PruneFailed(
            f"{removed} old revisions of functions were removed, and then Google refused: {error}"
        ) from None
    if removed:
        progress(f"{removed} old revisions of functions were removed")
    return removed


def _deployments_to_keep(api: FunctionRevisions) -> frozenset[str]:
    """Return the labels of the deployments to keep.

    These are the newest DEPLOYMENTS_KEPT deployments, the running deployment, and the newest
    deployment before the running one, to which a rollback would move.

    Args:
        api: the revisions of the function `api`, which order the deployments.
    """
    before: list[str] = []
    if api.deployment:
        before = api.deployments[: api.deployments.index(api.deployment)][-1:]
    return frozenset((*api.deployments[-DEPLOYMENTS_KEPT:], api.deployment, *before))


def _revisions_to_remove(found: FunctionRevisions, kept: frozenset[str]) -> list[str]:
    """Return the function's revisions to delete, oldest first.

    `kept` names the deployments to keep. Also keep the live revision, and revisions newer than the
    newest kept revision, because a deployment may be in progress.
    """
    stay = {revision for name, revision in found.by_deployment.items() if name in kept} | {
        found.live
    }
    last = max(
        (number for number, revision in enumerate(found.made) if revision in stay), default=0
    )
    return [revision for revision in found.made[:last] if revision not in stay]
