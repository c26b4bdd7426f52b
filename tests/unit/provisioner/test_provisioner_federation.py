"""Keyless access between AWS and Google Cloud, with simulated token services."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.conftest import require

for package in ("botocore", "google.auth"):
    require(package)

import urllib3  # noqa: E402
from botocore.exceptions import ClientError  # noqa: E402
from google.auth.exceptions import GoogleAuthError  # noqa: E402
from google.auth.transport.urllib3 import Request  # noqa: E402

from provisioner.clouds.aws.federation import federated_session  # noqa: E402
from provisioner.clouds.gcp.federation import federated_credentials  # noqa: E402
from tests.emulators.token_services import TokenServices, token_services  # noqa: E402

POOL = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/aws"
ACCOUNT = "dc-vision-other@tests-1.iam.gserviceaccount.com"
ROLE = "arn:aws:iam::123456789012:role/detcloud-vision-other"


def key_of(headers: Mapping[str, str]) -> str:
    """Return the access key that signed a request."""
    return headers["authorization"].partition("Credential=")[2]


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServices]:
    with token_services() as made:
        monkeypatch.setenv("DETCLOUD_STS_ENDPOINT", made.url)
        monkeypatch.setenv("DETCLOUD_IAM_ENDPOINT", made.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", made.url)
        made.provider, made.account, made.role = POOL, ACCOUNT, ROLE
        made.trusted, made.find_caller = "ASIAFUNCTION/", key_of
        yield made


@pytest.fixture(autouse=True)
def function_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of an AWS function."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIAFUNCTION")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def send_headers(credentials: Any) -> dict[str, str]:
    """Return the headers of a request to Compute Engine with these credentials."""
    headers: dict[str, str] = {}
    request = Request(urllib3.PoolManager(retries=False))
    credentials.before_request(request, "GET", "https://compute.googleapis.com/", headers)
    return headers


def test_aws_function_acts_as_the_service_account(services: TokenServices) -> None:
    credentials = federated_credentials(POOL, ACCOUNT)
    for _ in range(3):
        assert send_headers(credentials)["authorization"] == "Bearer account-1"
    # Each token is requested once while the former token is valid.
    assert services.given == ["exchange", "account"]


def test_untrusted_role_is_refused(
    services: TokenServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIASTRANGER")
    with pytest.raises(GoogleAuthError, match="not trusted"):
        send_headers(federated_credentials(POOL, ACCOUNT))
    assert services.given == []


def test_signature_for_another_provider_is_refused(services: TokenServices) -> None:
    with pytest.raises(GoogleAuthError, match="not trusted"):
        send_headers(federated_credentials(POOL.replace("/p/", "/q/"), ACCOUNT))


def session_of(services: TokenServices, audiences: list[str], role: str = ROLE) -> Any:
    def load_token(audience: str) -> str:
        audiences.append(audience)
        return f"signed for {audience}"

    services.tokens = {"signed for detcloud-aws:vision"}
    return federated_session(role, "vision", "us-east-1", load_token)


def test_google_service_assumes_the_role_once(services: TokenServices) -> None:
    audiences: list[str] = []
    session = session_of(services, audiences)
    assert audiences == []
    for _ in range(3):
        assert session.get_credentials().get_frozen_credentials().access_key.endswith("00001")
    assert (services.given, audiences) == (["role"], ["detcloud-aws:vision"])


def test_expiring_credentials_are_replaced(services: TokenServices) -> None:
    audiences: list[str] = []
    services.lifetime_seconds = 60
    session = session_of(services, audiences)
    first = session.get_credentials().get_frozen_credentials().access_key
    services.lifetime_seconds = 3600
    second = session.get_credentials().get_frozen_credentials().access_key
    assert (first[-1], second[-1]) == ("1", "2")
    assert len(audiences) == 2


def test_token_of_another_cluster_is_refused(services: TokenServices) -> None:
    session = session_of(services, [])
    services.tokens = {"signed for detcloud-aws:audio"}
    with pytest.raises(ClientError, match="not trusted"):
        session.get_credentials().get_frozen_credentials()
    assert services.given == []
