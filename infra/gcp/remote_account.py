"""The remote account on Google Cloud of a cluster whose functions run in another cloud."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from control_plane.config.pools import ClusterConfig
from infra.findings import Finding
from infra.gcp.google_api import GoogleApi, GoogleError, RestApi
from infra.gcp.instance_ends import end_instances, list_parts
from infra.gcp.machine_catalog import GoogleCatalog, MachineCatalog
from infra.gcp.names import Names
from infra.gcp.pool_checks import PoolPlace, find_place_problems, gcp_pools
from infra.gcp.remote_leftovers import find_remote_leftovers
from infra.gcp.remote_pools import find_pool_findings
from infra.gcp.settings import (
    REGIONS_MAX,
    ProjectId,
    ProjectNumber,
    Region,
    check_different,
)
from infra.gcp.trust_checks import find_remote_findings
from infra.gcp.trust_policies import Trust
from infra.gcp.trust_removal import render_removal
from infra.gcp.trust_script import render_script
from infra.remote_accounts import Launcher, RemoteSettings, parse_remote_settings
from infra.stack_program import DrainFailed, DrainReport, Progress
from provisioner.clouds.provider import CLUSTER_TAG

EXPECTED: Final = (
    '{"project": ID, "projectNumber": "NUMBER", "region": REGION} of a project of Google Cloud, '
    f'and for pools in more of its regions "regions": [REGION] with at most {REGIONS_MAX}'
)


class GoogleRemoteSettings(RemoteSettings):
    """The setting that describes a remote account on Google Cloud."""

    project: ProjectId
    project_number: ProjectNumber
    region: Region
    """That of pools that name none."""
    regions: Annotated[
        tuple[Region, ...],
        Field(max_length=REGIONS_MAX),
        AfterValidator(check_different),
    ] = ()
    """The regions in which it has subnetworks, besides."""


class GoogleRemoteAccount:
    """A cluster's remote account on Google Cloud. `api` and `catalog` call as the deployer."""

    def __init__(
        self,
        settings: GoogleRemoteSettings,
        launcher: Launcher,
        api: GoogleApi | None = None,
        catalog: MachineCatalog | None = None,
    ) -> None:
        project, number = settings.project, settings.project_number
        self._names = Names(launcher.team, project, number, settings.region)
        self._trust = Trust(self._names, launcher)
        self._regions = tuple(dict.fromkeys((settings.region, *settings.regions)))
        self._api = api or RestApi(project)
        self._catalog = catalog or GoogleCatalog(project)

    def variables(self) -> Mapping[str, Any]:
        """Return what `lambdas.gcp.other_pools` opens the remote account by."""
        names = self._names
        subnetworks = {region: names.subnetwork_path(region) for region in self._regions}
        return {
            "project": names.project,
            "region": names.region,
            "provider": self._trust.provider,
            "launcher": names.email("launcher"),
            "instance": names.email("instance"),
            "network": {
                "network": names.network_path,
                "subnetworks": subnetworks,
                "tags": [names.cluster],
                "public_ip": True,
                "labels": {CLUSTER_TAG: names.cluster},
                # What the launcher may do goes by names of instances.
                "name_prefix": names.instance_prefix,
            },
        }

    @property
    def place(self) -> str:
        """The project that it is in."""
        return f"the project {self._names.project}"

    def commands(self, cluster: ClusterConfig) -> str:
        """Return the script of gcloud's commands that make the remote account."""
        return render_script(self._trust, self._regions, logs_instances=_has_logging_pools(cluster))

    def removal_commands(self) -> str:
        """Return the script of gcloud's commands that remove the remote account."""
        return render_removal(self._trust, self._regions)

    def find_pool_problems(self, cluster: ClusterConfig) -> list[str]:
        """Return what pools on Google Cloud say that cannot run in the remote account."""
        place = PoolPlace(
            self._names, self._regions, "detcloud:otherClouds", "`regions` of gcp there"
        )
        return [
            f"pool {name}: {problem}"
            for name, provider in gcp_pools(cluster)
            for problem in find_place_problems(place, provider)
        ]

    def find_findings(self, cluster: ClusterConfig) -> list[Finding]:
        """Check that the remote account is set up, and that pools can run in it."""
        logs = _has_logging_pools(cluster)
        found = find_remote_findings(self._trust, self._regions, self._api, logs_instances=logs)
        if found[0].subject.startswith("credentials"):
            return found
        return [*found, *find_pool_findings(self._trust, cluster, self._api, self._catalog)]

    def drain(self, progress: Progress) -> DrainReport:
        """End the cluster's instances there. Raises DrainFailed."""
        with self._explain_refusals():
            return DrainReport(end_instances(self._names, self._api, progress), 0)

    def list_instances(self) -> list[str]:
        """Return the cluster's instances there that have not ended. Raises DrainFailed."""
        with self._explain_refusals():
            found = list_parts(self._names, self._api, "instance")
            return sorted(name.rpartition("/")[2] for name in found)

    def find_leftovers(self) -> list[str]:
        """Return the cluster's remaining resources there, a line each."""
        return find_remote_leftovers(self._trust, self._regions, self._api)

    @contextmanager
    def _explain_refusals(self) -> Iterator[None]:
        try:
            yield
        except GoogleError as error:
            raise DrainFailed(
                f"instances in {self._names.project} may be left: Google did not accept it: "
                f"{error}; "
                "`gcloud auth application-default login` makes credentials; then try again"
            ) from None


def open_remote_account(value: object, launcher: Launcher) -> GoogleRemoteAccount:
    """Return the remote account that a setting's value describes. Raises ValueError with what was
    expected.
    """
    return GoogleRemoteAccount(
        parse_remote_settings(GoogleRemoteSettings, value, EXPECTED), launcher
    )


def _has_logging_pools(cluster: ClusterConfig) -> bool:
    return any(provider.use_cloud_logging for _, provider in gcp_pools(cluster))
