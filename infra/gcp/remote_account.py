"""The remote account on Google Cloud of a cluster that runs in another cloud."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from control_plane.config.pools import ClusterConfig
from control_plane.config.server_clouds import REGIONS_MAX
from infra.findings import Finding
from infra.gcp.google_api import GoogleApi, GoogleError, RestApi
from infra.gcp.instance_ends import end_instances, list_parts
from infra.gcp.machine_catalog import GoogleCatalog, MachineCatalog
from infra.gcp.names import Names
from infra.gcp.pool_checks import PoolPlace, find_place_problems, gcp_pools
from infra.gcp.remote_leftovers import find_remote_leftovers
from infra.gcp.remote_pools import find_pool_findings
from infra.gcp.settings import (
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
from provisioner.clouds.gcp.instance_names import describe_remote

EXPECTED: Final = (
    '{"project": ID, "projectNumber": "NUMBER", "region": REGION} of a project of Google Cloud, '
    f'and for pools in more of its regions "regions": [REGION] with at most {REGIONS_MAX}'
)


class GoogleRemoteSettings(RemoteSettings):
    """The value of `otherClouds.gcp`, which describes a remote account on Google Cloud."""

    project: ProjectId
    """The project's id."""
    project_number: ProjectNumber
    """The project's number."""
    region: Region
    """The region of pools that name no region."""
    regions: Annotated[
        tuple[Region, ...],
        Field(max_length=REGIONS_MAX),
        AfterValidator(check_different),
    ] = ()
    """Further regions with subnetworks."""


class GoogleRemoteAccount:
    """A cluster's remote account on Google Cloud, a RemoteAccount.

    `api` and `catalog` call Google with the deployer's credentials; by default, with the
    environment's credentials.
    """

    def __init__(
        self,
        settings: GoogleRemoteSettings,
        launcher: Launcher,
        api: GoogleApi | None = None,
        catalog: MachineCatalog | None = None,
    ) -> None:
        project, number = settings.project, settings.project_number
        self._names = Names(launcher.team, project, number, settings.region, launcher.cluster_id)
        self._trust = Trust(self._names, launcher)
        self._regions = tuple(dict.fromkeys((settings.region, *settings.regions)))
        self._api = api or RestApi(project)
        self._catalog = catalog or GoogleCatalog(project)

    def variables(self) -> Mapping[str, Any]:
        """Return the value, ready for JSON, from which `lambdas.gcp.other_pools` opens the account.

        The keys are `project`, `region`, `provider` (of workload identities), `launcher` and
        `instance` (e-mail addresses) and `network`. Google is not called.
        """
        described = describe_remote(self._names, self._regions, has_launcher=True)
        return {**described, "provider": self._trust.provider}

    @property
    def place(self) -> str:
        """The words `the project` and the project's id, for messages."""
        return f"the project {self._names.project}"

    def commands(self, cluster: ClusterConfig) -> str:
        """Return a shell script with gcloud that creates or completes the remote account.

        Instances may write to Cloud Logging only if a pool in `cluster` does so. Google is not
        called.
        """
        return render_script(self._trust, self._regions, logs_instances=_has_logging_pools(cluster))

    def removal_commands(self) -> str:
        """Return a shell script with gcloud that removes the remote account.

        The script stops with an error while instances of the cluster exist.
        """
        return render_removal(self._trust, self._regions)

    def find_pool_problems(self, cluster: ClusterConfig) -> list[str]:
        """Return a line for each problem of Google Cloud pools with this project; [] if all fit.

        Google is not called.
        """
        place = PoolPlace(
            self._names, self._regions, "detcloud:otherClouds", "`regions` of gcp there"
        )
        return [
            f"pool {name}: {problem}"
            for name, provider in gcp_pools(cluster)
            for problem in find_place_problems(place, provider)
        ]

    def find_findings(self, cluster: ClusterConfig) -> list[Finding]:
        """Return findings about the set-up of the remote account and about pools on Google Cloud.

        Google is called; a failed read becomes a warning. Without valid credentials, return only a
        warning about the credentials.
        """
        logs = _has_logging_pools(cluster)
        found = find_remote_findings(self._trust, self._regions, self._api, logs_instances=logs)
        if found[0].subject.startswith("credentials"):
            return found
        return [*found, *find_pool_findings(self._trust, cluster, self._api, self._catalog)]

    def drain(self, progress: Progress) -> DrainReport:
        """Terminate the cluster's instances in the project; the report counts no templates.

        The cluster's tick must be stopped. Raise DrainFailed if instances do not end or Google
        refuses.
        """
        with self._explain_refusals():
            return DrainReport(end_instances(self._names, self._api, progress), 0)

    def list_instances(self) -> list[str]:
        """Return the sorted names of the cluster's instances in the project.

        Stopped instances are included. Raise DrainFailed if Google refuses.
        """
        with self._explain_refusals():
            found = list_parts(self._names, self._api, "instance")
            return sorted(name.rpartition("/")[2] for name in found)

    def find_leftovers(self) -> list[str]:
        """Return a line for each remaining resource of the cluster in the project; [] if clean.

        If the project could not be read, return one line that says so.
        """
        return find_remote_leftovers(self._trust, self._regions, self._api)

    @contextmanager
    def _explain_refusals(self) -> Iterator[None]:
        """Convert GoogleErrors in the block to DrainFailed."""
        try:
            yield
        except GoogleError as error:
            raise DrainFailed(
                f"instances in {self._names.project} may be left: Google refused a request: "
                f"{error}; create credentials with `gcloud auth application-default login`, and "
                "try again"
            ) from None


def open_remote_account(value: object, launcher: Launcher) -> GoogleRemoteAccount:
    """Return the remote account that the value of `otherClouds.gcp` describes, without a call.

    `launcher` is the function that launches instances. Raise ValueError with a text of what was
    expected if the value is invalid.
    """
    return GoogleRemoteAccount(
        parse_remote_settings(GoogleRemoteSettings, value, EXPECTED), launcher
    )


def _has_logging_pools(cluster: ClusterConfig) -> bool:
    """Return whether agents of any pool on Google Cloud write journals to Cloud Logging."""
    return any(provider.use_cloud_logging for _, provider in gcp_pools(cluster))
