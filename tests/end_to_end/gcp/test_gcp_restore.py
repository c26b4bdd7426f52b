"""Rehearsals of disasters on Google Cloud: the bucket of checkpoints is lost under running trials.

fake-gcs-server keeps no versions, so that all objects come from the copy.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from infra.gcp.google_api import RestApi
from infra.gcp.object_copies import GcsBuckets
from infra.gcp.settings import parse_settings
from infra.gcp.state_restore import restore_lost_objects
from infra.restoration import FilesReport
from tests.end_to_end.cluster_steps import KEEP_ALL, wait_for, wait_until
from tests.end_to_end.gcp.cluster import create
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.lost_bucket import rehearse_loss_of_bucket
from tests.patience import ANSWER_SECONDS_MAX

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment

pytestmark = pytest.mark.nightly


class CopiedBucket:
    """The bucket of checkpoints of a team with copies."""

    def __init__(self, deployment: GcpDeployment) -> None:
        from google.auth.credentials import AnonymousCredentials

        self._deployment = deployment
        self._name = deployment.outputs["checkpoints"]
        names = deployment.names
        texts = {
            "project": names.project,
            "projectNumber": names.project_number,
            "region": names.region,
            "clusterConfig": "pools.yaml",
            "adminSha256": "a" * 64,
            "copies": '{"region": "europe-west4"}',
        }
        self._settings = parse_settings(deployment.team, texts)
        self._copy = deployment.gcs.new_bucket(self._settings.names.copy("checkpoints"))
        self._api = RestApi(credentials=AnonymousCredentials())
        self._root = f"{deployment.gcs.url}/storage/v1/b"

    def lose(self) -> None:
        wait_until(self._is_gone, 60, "the end of the bucket")

    def _is_gone(self) -> bool:
        """Copy and delete all objects, and delete the bucket. Return False if a trial wrote an
        object meanwhile.
        """
        store = GcsBuckets(self._api, self._root)
        for found in store.objects(self._name):
            store.copy(self._name, found, self._copy)
            self._delete(f"{self._name}/o/{quote(found.key, safe='')}")
        try:
            self._delete(self._name)
        except urllib.error.HTTPError as error:
            if error.code not in (409, 412):
                raise
            return False
        return True

    def _delete(self, place: str) -> None:
        request = urllib.request.Request(f"{self._root}/{place}", method="DELETE")
        urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX).close()

    def create(self) -> None:
        self._deployment.gcs.new_bucket(self._name)

    def restore(self) -> FilesReport:
        table = self._deployment.table
        report = restore_lost_objects(
            self._settings,
            self._api,
            None,
            print,
            lambda name: nullcontext(table),
            buckets=self._root,
        )
        return report.checkpoints


def test_gcp_trials_survive_the_loss_of_the_bucket(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    def begin(folder: Path) -> int:
        return create(deployment, person, 8, folder, batch_seconds=0.15, settings=(KEEP_ALL,))

    rehearse_loss_of_bucket(deployment, person, CopiedBucket(deployment), begin, tmp_path)
    wait_for(deployment, person, create(deployment, person, 1, tmp_path))
