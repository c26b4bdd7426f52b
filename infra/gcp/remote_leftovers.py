"""Finds remaining resources on Google Cloud of a cluster that runs in another cloud."""

from collections.abc import Iterator
from typing import Final

from infra.gcp.google_api import GoogleApi, GoogleError, is_deleted, read_or_none
from infra.gcp.instance_ends import COMPUTE, list_parts
from infra.gcp.trust_checks import IAM
from infra.gcp.trust_policies import LOCATION, Trust, list_remote_grants
from infra.gcp.trust_script import ACCOUNTS, TRUST_ROLE

_UNAUTHORIZED: Final = 401


def find_remote_leftovers(trust: Trust, regions: tuple[str, ...], api: GoogleApi) -> list[str]:
    """Return a line for each remaining resource of the remote account in the project.

    `regions` are the regions with subnetworks. Return [] if nothing remains. If Google refuses,
    return one line that says so.
    """
    where = f"in the project {trust.names.project}"
    try:
        return [f"{part} {where}" for part in _parts(trust, regions, api)]
    except GoogleError as error:
        remedy = ""
        if error.status == _UNAUTHORIZED:
            remedy = "; `gcloud auth application-default login` creates credentials"
        return [f"unknown resources {where}: the search failed: {error}{remedy}"]


def _parts(trust: Trust, regions: tuple[str, ...], api: GoogleApi) -> Iterator[str]:
    """Yield a text like `the role ID` for each remaining resource that is not deleted.

    Raise GoogleError.
    """
    names = trust.names
    grants = list_remote_grants(names, regions, logs_instances=True)
    roles = [*dict.fromkeys(grant.role for grant in grants), TRUST_ROLE]
    accounts = f"{IAM}/projects/{names.project}/serviceAccounts"
    firewall = f"projects/{names.project}/global/firewalls/{names.part('within')}"
    places = {
        f"the pool of identities {trust.pool}": (
            f"{IAM}/projects/{names.project_number}/{LOCATION}/{trust.pool}"
        ),
        **{
            f"the service account {names.email(account)}": f"{accounts}/{names.email(account)}"
            for account in ACCOUNTS
        },
        **{f"the role {names.role_id(role)}": f"{IAM}/{names.role(role)}" for role in roles},
        f"the firewall rule {names.part('within')}": f"{COMPUTE}/{firewall}",
        **{
            f"the subnetwork {names.part(region)}": f"{COMPUTE}/{names.subnetwork_path(region)}"
            for region in regions
        },
        f"the network {names.part('network')}": f"{COMPUTE}/{names.network_path}",
    }
    for name, url in places.items():
        found = read_or_none(api, url)
        if found is not None and not is_deleted(found):
            yield name
    for kind in ("instance", "disk"):
        yield from (f"the {kind} {part}" for part in list_parts(names, api, kind))
