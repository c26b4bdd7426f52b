"""Google's clients in a trial's code take the tokens that the cluster issued for it."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from detcloud.agent.assignment.environment import without_user_variables
from detcloud.agent.issued_keys import StorageKeys, StorageToken
from detcloud.agent.storage_credentials import CredentialServer
from detcloud.agent.trial_grants import TrialGrants
from tests.patience import PROCESS_SECONDS_MAX

ACCOUNT = "dc-vision-data@acme-ml.iam.gserviceaccount.com"
CODE = """
import google.auth, google.auth.transport.requests
credentials, project = google.auth.default()
credentials.refresh(google.auth.transport.requests.Request())
print(project, credentials.service_account_email, credentials.token, credentials.valid)
"""


@dataclass
class Cluster:
    """Gives out tokens of an account, or of whatever `account` says, unless it is away."""

    account: str = ACCOUNT
    is_away: bool = False
    asked: list[str] = field(default_factory=list)

    def fetch(self, holder: str) -> StorageKeys | StorageToken:
        if self.is_away:
            raise TimeoutError("the cluster did not answer")
        self.asked.append(holder)
        ends_ms = int((time.time() + 3600) * 1000)
        return StorageToken(f"token-of-{holder}", ends_ms, self.account)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def variables_of(server: CredentialServer, allocation: str = "4.1") -> dict[str, str]:
    return server.variables(allocation, google=True, google_data=True)


def ask(host: str, path: str, flavor: str = "Google") -> tuple[int, str]:
    request = urllib.request.Request(f"http://{host}{path}", headers={"Metadata-Flavor": flavor})
    try:
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["Metadata-Flavor"] == "Google"
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_googles_own_client_finds_the_token_the_account_and_the_project(
    server: CredentialServer, tmp_path: Path
) -> None:
    pytest.importorskip("google.auth")
    # Nothing of this machine's: the client would prefer a person's credentials.
    given = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **variables_of(server)}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=given,
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=True,
    )
    assert done.stdout.split() == ["acme-ml", ACCOUNT, "token-of-4.1/data", "True"]


def test_the_store_has_another_token_than_the_code(
    server: CredentialServer, cluster: Cluster
) -> None:
    found = variables_of(server)
    uri = found["DETCLOUD_STORAGE_CREDENTIALS_URI"]
    request = urllib.request.Request(
        uri, headers={"Authorization": found["DETCLOUD_STORAGE_CREDENTIALS_TOKEN"]}
    )
    with urllib.request.urlopen(request) as answer:
        assert json.loads(answer.read())["access_token"] == "token-of-4.1"
    assert "NO_GCE_CHECK" not in found
    # Where the code gets none, it does not wait for a machine that is closed to it.
    assert server.variables("4.1", google=True)["NO_GCE_CHECK"] == "true"


def test_nobody_gets_the_token_of_another_allocation(
    server: CredentialServer, cluster: Cluster
) -> None:
    own, other = (variables_of(server, name)["GCE_METADATA_HOST"] for name in ("4.1", "5.1"))
    token = "/computeMetadata/v1/instance/service-accounts/default/token"
    assert json.loads(ask(own, token)[1])["access_token"] == "token-of-4.1/data"
    stolen = own.replace("/4.1/", "/5.1/")
    assert stolen != other
    for host in (stolen, other[:-1], other.rpartition("/")[0]):
        for path in ("", token, "/computeMetadata/v1/project/project-id"):
            assert ask(host, path)[0] in (403, 404), (host, path)
    # What a page or a redirect may make a program ask for has no such header.
    assert ask(own, token, "Mozilla")[0] == 403
    assert cluster.asked == ["4.1/data"]


def test_what_is_not_there_is_not_found_and_a_cluster_that_is_away_is_waited_for(
    server: CredentialServer, cluster: Cluster
) -> None:
    host = variables_of(server)["GCE_METADATA_HOST"]
    root = "/computeMetadata/v1"
    accounts = f"{root}/instance/service-accounts"
    assert ask(host, f"{root}/instance/id")[0] == 404
    assert ask(host, f"{accounts}/other@acme-ml.iam.gserviceaccount.com/token")[0] == 404
    assert ask(host, f"{accounts}/default/identity?audience=x")[0] == 404
    assert ask(host, f"{accounts}/{ACCOUNT}/email") == (200, ACCOUNT)
    # An account of a project's own is not named after its project.
    cluster.account = "123-compute@developer.gserviceaccount.com"
    away = variables_of(server, "6.1")["GCE_METADATA_HOST"]
    assert ask(away, f"{root}/project/project-id")[0] == 404
    cluster.is_away = True
    assert (
        ask(variables_of(server, "7.1")["GCE_METADATA_HOST"], f"{accounts}/default/token")[0] == 503
    )


def test_a_spec_says_which_cloud_the_tokens_are_of(tmp_path: Path) -> None:
    grants = TrialGrants("http://127.0.0.1:9", "a", lambda: None, tmp_path, print)
    google = grants.variables("4.1", {"data_credentials": "google"})
    assert set(google) == {"GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"}
    assert "AWS_EC2_METADATA_DISABLED" in grants.variables("4.1", {"data_credentials": "given"})


def test_code_with_credentials_of_its_own_is_offered_none(server: CredentialServer) -> None:
    found = variables_of(server)
    for own in (["GOOGLE_APPLICATION_CREDENTIALS=/keys/a.json"], ["GCE_METADATA_HOST=other:80"]):
        left = without_user_variables(found, own, cuda=False)
        assert {name for name in found if name not in left} == {
            name for name in found if name.startswith("GCE_METADATA_")
        }
    assert without_user_variables(found, ["AWS_REGION=eu-west-1"], cuda=False) == found
