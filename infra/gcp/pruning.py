"""Pruning of the functions' revisions: those that no rollback needs any more are removed. Their
images go by the repository's own rule.
"""

from typing import Final

from infra.gcp.google_api import GoogleApi, GoogleError
from infra.gcp.names import Names
from infra.gcp.rollback import FunctionRevisions, read_revisions, service_url
from infra.stack_program import Progress, PruneFailed, RollbackFailed
from lambdas.gcp.function_names import FUNCTIONS

# A rollback goes back by one at a time; who has to go further deploys that release.
DEPLOYMENTS_KEPT: Final = 5
# By whose revisions deployments are ordered.
_FIRST: Final = "api"


def prune_revisions(names: Names, api: GoogleApi, progress: Progress) -> int:
    """Remove the revisions of the functions that belong to none of the last deployments, of the one
    that runs, and of the one before that; returns how many.

    Raises:
        PruneFailed: Google refused; what is left goes the next time.
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
    before: list[str] = []
    if api.deployment:
        before = api.deployments[: api.deployments.index(api.deployment)][-1:]
    return frozenset((*api.deployments[-DEPLOYMENTS_KEPT:], api.deployment, *before))


def _revisions_to_remove(found: FunctionRevisions, kept: frozenset[str]) -> list[str]:
    """Return the revisions of a function that go: neither the one that is called, nor one that is
    newer than all that stay, since a deployment may be under way.
    """
    stay = {revision for name, revision in found.by_deployment.items() if name in kept} | {
        found.live
    }
    last = max(
        (number for number, revision in enumerate(found.made) if revision in stay), default=0
    )
    return [revision for revision in found.made[:last] if revision not in stay]
