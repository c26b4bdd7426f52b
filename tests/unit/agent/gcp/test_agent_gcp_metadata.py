"""Google's clients in a trial's code use the tokens that the cluster issued for the trial."""

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
    """Source of tokens for `account`; raises TimeoutError while `is_away`."""

    account: str = ACCOUNT
    is_away: bool = False
    requests: list[str] = field(default_factory=list)

    def fetch(self, holder: str) -> StorageKeys | StorageToken:
        if self.is_away:
            raise TimeoutError("the cluster did not answer")
        self.requests.append(holder)
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


def test_google_client_finds_token_account_and_project(
    server: CredentialServer, tmp_path: Path
) -> None:
    pytest.importorskip("google.auth")
    # The environment has nothing of this machine: the client would prefer a person's credentials.
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


def test_store_and_code_have_different_tokens(server: CredentialServer, cluster: Cluster) -> None:
    variables = variables_of(server)
    uri = variables["DETCLOUD_STORAGE_CREDENTIALS_URI"]
    request = urllib.request.Request(
        uri, headers={"Authorization": variables["DETCLOUD_STORAGE_CREDENTIALS_TOKEN"]}
    )
    with urllib.request.urlopen(request) as answer:
        assert json.loads(answer.read())["access_token"] == "token-of-4.1"
    assert "NO_GCE_CHECK" not in variables
    # Code without a token of its own does not wait for the closed metadata server.
    assert server.variables("4.1", google=True)["NO_GCE_CHECK"] == "true"


def test_token_of_a_foreign_allocation_is_refused(
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
    # Requests forged by a web page or a redirect lack the header.
    assert ask(own, token, "Mozilla")[0] == 403
    assert cluster.requests == ["4.1/data"]


def test_unknown_metadata_are_404_and_an_unreachable_cluster_is_503(
    server: CredentialServer, cluster: Cluster
) -> None:
    host = variables_of(server)["GCE_METADATA_HOST"]
    root = "/computeMetadata/v1"
    accounts = f"{root}/instance/service-accounts"
    assert ask(host, f"{root}/instance/id")[0] == 404
    assert ask(host, f"{accounts}/other@acme-ml.iam.gserviceaccount.com/token")[0] == 404
    assert ask(host, f"{accounts}/default/identity?audience=x")[0] == 404
    assert ask(host, f"{accounts}/{ACCOUNT}/email") == (200, ACCOUNT)
    # The name of a default service account does not contain the project's id.
    cluster.account = "123-compute@developer.gserviceaccount.com"
    away = variables_of(server, "6.1")["GCE_METADATA_HOST"]
    assert ask(away, f"{root}/project/project-id")[0] == 404
    cluster.is_away = True
    assert (
        ask(variables_of(server, "7.1")["GCE_METADATA_HOST"], f"{accounts}/default/token")[0] == 503
    )


def test_spec_selects_the_cloud_of_the_tokens(tmp_path: Path) -> None:
    grants = TrialGrants("http://127.0.0.1:9", "a", lambda: None, tmp_path, print)
    google = grants.variables("4.1", {"data_credentials": "google"})
    assert set(google) == {"GCE_METADATA_HOST", "GCE_METADATA_IP", "GCE_METADATA_ROOT"}
    assert "AWS_EC2_METADATA_DISABLED" in grants.variables("4.1", {"data_credentials": "given"})


def test_user_credentials_replace_offered_credentials(server: CredentialServer) -> None:
    offered = variables_of(server)
    for own in (["GOOGLE_APPLICATION_CREDENTIALS=/keys/a.json"], ["GCE_METADATA_HOST=other:80"]):
        left = without_user_variables(offered, own, device="cpu")
        assert {name for name in offered if name not in left} == {
            name for name in offered if name.startswith("GCE_METADATA_")
        }
    assert without_user_variables(offered, ["AWS_REGION=eu-west-1"], device="cpu") == offered
