"""Pruning of the functions' versions: those that no rollback needs any more are removed.

Each deployment publishes a version of every function, and Lambda keeps each with its code until it
is removed, against the 75 GB that an account has for code in a region.
"""

from collections.abc import Mapping

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.names import FUNCTIONS, Names
from infra.aws.rollback import FunctionVersions, read_versions
from infra.stack_program import Progress, PruneFailed

# A rollback goes back by one at a time; who has to go further deploys that release.
DEPLOYMENTS_KEPT = 5
# By whose versions deployments are ordered.
_FIRST = "api"


def prune_versions(names: Names, clients: Clients, progress: Progress) -> int:
    """Remove the versions of the functions that belong to none of the last deployments, of the one
    that runs, and of the one before that; returns how many.

    Raises:
        PruneFailed: AWS refused; what is left goes the next time.
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
            f"{removed} old versions of functions were removed, and then AWS refused: {error}"
        ) from None
    if removed:
        progress(f"{removed} old versions of functions were removed")
    return removed


def _deployments_to_keep(api: FunctionVersions) -> frozenset[str]:
    newest_first = sorted(api.by_deployment, key=lambda name: -api.by_deployment[name])
    before = [name for name in newest_first if api.by_deployment[name] < api.live]
    return frozenset((*newest_first[:DEPLOYMENTS_KEPT], api.deployment, *before[:1]))


def _versions_to_remove(versions: FunctionVersions, kept: frozenset[str]) -> list[int]:
    """Return the versions of a function that go: neither the one that is called, nor one that is
    newer than all that stay, since a deployment may be under way.
    """
    stay: Mapping[str, int] = {
        name: number for name, number in versions.by_deployment.items() if name in kept
    }
    numbers = {*stay.values(), versions.live}
    return sorted(
        number for number in versions.published if number not in numbers and number < max(numbers)
    )
