"""Deletes versions of functions that no rollback needs any more.

Each deployment publishes a version of every function. Lambda keeps a version with its code until
the version is deleted, and counts the code against the account's 75 GB in a region.
"""

from collections.abc import Mapping

import botocore.exceptions as sdk

from detcloud.shared.plurals import count_text
from infra.aws.account_facts import Clients
from infra.aws.names import FUNCTIONS, Names
from infra.aws.rollback import FunctionVersions, read_versions
from infra.stack_program import Progress, PruneFailed

# A rollback moves back by a single deployment; users who need an older release deploy that release.
DEPLOYMENTS_KEPT = 5
# Deployments are ordered by the versions of this function.
_FIRST = "api"


def prune_versions(names: Names, clients: Clients, progress: Progress) -> int:
    """Delete the functions' old versions, and return the number of deleted versions.

    Keep the versions of the newest DEPLOYMENTS_KEPT deployments, of the running deployment and of
    the deployment before the running one. Report the number if any version was deleted.

    Raises:
        PruneFailed: AWS refused a call. Some versions may be deleted; call again for the rest.
        RollbackFailed: a function or its alias does not exist.
    """
    removed = 0
    try:
        found = {name: read_versions(names, clients, name) for name in FUNCTIONS}
        kept = _deployments_to_keep(found[_FIRST])
        for name, versions in found.items():
            for version in _versions_to_remove(versions, kept):
                clients("lambda").delete_function(
                    FunctionName=names.part(name), Qualifier=str(version)
                )
                removed += 1
    except (sdk.ClientError, sdk.BotoCoreError) as error:
        raise PruneFailed(
            f"deleted {count_text(removed, 'old function version')}, then AWS refused: {error}"
        ) from None
    if removed:
        progress(f"deleted {count_text(removed, 'old function version')}")
    return removed


def _deployments_to_keep(api: FunctionVersions) -> frozenset[str]:
    """Return the descriptions of the deployments to keep.

    These are the newest DEPLOYMENTS_KEPT deployments, the running deployment, and the newest
    deployment before the running one, to which a rollback would move.

    Args:
        api: the versions of the function `api`, whose numbers order the deployments.
    """
    newest_first = sorted(api.by_deployment, key=lambda name: -api.by_deployment[name])
    before = [name for name in newest_first if api.by_deployment[name] < api.live]
    return frozenset((*newest_first[:DEPLOYMENTS_KEPT], api.deployment, *before[:1]))


def _versions_to_remove(versions: FunctionVersions, kept: frozenset[str]) -> list[int]:
    """Return the function's versions to delete, oldest first.

    `kept` names the deployments to keep. Also keep the live version, and versions newer than the
    newest kept version, because a deployment may be in progress.
    """
    stay: Mapping[str, int] = {
        name: number for name, number in versions.by_deployment.items() if name in kept
    }
    numbers = {*stay.values(), versions.live}
    return sorted(
        number for number in versions.published if number not in numbers and number < max(numbers)
    )
