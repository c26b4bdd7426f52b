"""Credentials of a server on own machines for clouds, with simulated token services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.conftest import require

for package in ("botocore", "google.auth", "cryptography"):
    require(package)

import urllib3  # noqa: E402
from botocore.exceptions import NoCredentialsError  # noqa: E402
from google.auth.exceptions import GoogleAuthError  # noqa: E402
from google.auth.transport.urllib3 import Request  # noqa: E402

from provisioner.clouds.aws.ec2_api import translate_errors  # noqa: E402
from provisioner.clouds.aws.own_session import own_session  # noqa: E402
from provisioner.clouds.gcp.own_credentials import OwnCredentials  # noqa: E402
from provisioner.clouds.provider import NotAllowed  # noqa: E402
from tests.emulators.google_lab import google_lab  # noqa: E402
from tests.emulators.token_services import TokenServices, token_services  # noqa: E402

ROLE = "arn:aws:iam::123456789012:role/detcloud-lab-launcher"
ACCOUNT = "dc-lab-launch@tests-1.iam.gserviceaccount.com"
_ANSWER = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleResult><Credentials><AccessKeyId>ASIALAB</AccessKeyId>
<SecretAccessKey>secret</SecretAccessKey><SessionToken>session</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult>
</AssumeRoleResponse>"""


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenServices]:
    """The token service of AWS, which opens ROLE for the key AKIALAB."""
    with token_services() as made:

        def assume(headers: Mapping[str, str], content: bytes) -> tuple[int, str]:
            form = dict(parse_qsl(content.decode()))
            made.given.append(form["RoleSessionName"])
            is_trusted = "Credential=AKIALAB/" in headers["authorization"]
            return (200, _ANSWER) if is_trusted and form["RoleArn"] == ROLE else refuse()

        refused = made.pass_on

        def refuse() -> tuple[int, str]:
            return refused({}, b"")

        made.pass_on = assume
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", made.url)
        yield made


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the environment of a server with the key AKIALAB."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIALAB")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)


def test_server_assumes_the_role_once_while_the_session_is_valid(services: TokenServices) -> None:
    session = own_session(ROLE, "cluster-id", "us-east-1")
    assert services.given == []
    assert session.get_config_variable("region") == "us-east-1"
    for _ in range(2):
        assert session.get_credentials().get_frozen_credentials().access_key == "ASIALAB"
    assert services.given == ["detcloud-cluster-id"]


def test_server_without_a_role_uses_its_own_keys(services: TokenServices) -> None:
    session = own_session("", "cluster-id", "us-east-1")
    assert session.get_credentials().access_key == "AKIALAB"
    assert services.given == []


def test_refused_role_is_a_lack_of_credentials(
    services: TokenServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASTRANGER")
    session = own_session(ROLE, "cluster-id", "us-east-1")
    with pytest.raises(NotAllowed), translate_errors():
        session.get_credentials().get_frozen_credentials()


def test_keys_from_a_profile_are_used(
    services: TokenServices, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    session = own_session(ROLE, "cluster-id", "us-east-1")
    with pytest.raises(NoCredentialsError):
        session.get_credentials().get_frozen_credentials()
    keys = "aws_access_key_id = AKIALAB\naws_secret_access_key = secret\n"
    (tmp_path / "credentials").write_text(f"[lab]\n{keys}")
    monkeypatch.setenv("AWS_PROFILE", "lab")
    # The next use tries again.
    assert session.get_credentials().get_frozen_credentials().access_key == "ASIALAB"


def token_of(credentials: Any) -> str:
    """Return the authorization of a request to Compute Engine."""
    headers: dict[str, str] = {}
    request = Request(urllib3.PoolManager(retries=False))
    credentials.before_request(request, "GET", "https://compute.googleapis.com/", headers)
    return headers["authorization"]


def test_server_acts_as_the_google_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    credentials = OwnCredentials(ACCOUNT)
    with pytest.raises(GoogleAuthError):
        token_of(credentials)
    with google_lab(tmp_path / "gce", "tests-1", ACCOUNT) as lab:
        for name, value in lab.environment.items():
            monkeypatch.setenv(name, value)
        for _ in range(2):
            assert token_of(credentials) == "Bearer account-1"
        assert lab.tokens.given == ["own", "account"]
        assert token_of(OwnCredentials("")) == "Bearer own"
