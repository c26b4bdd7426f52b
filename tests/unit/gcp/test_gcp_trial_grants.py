"""Access of trials to configured data buckets and image repositories."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden
from google.cloud.storage import Client
from google.oauth2.credentials import Credentials

from control_plane.gcp.account_tokens import AccountTokens
from control_plane.gcp.trial_grants import PULL_SECONDS, AccountGrants, DataPlace, data_boundary
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.gcs_boundaries import (
    CONDITION_CHARACTERS_MAX,
    RULES_MAX,
    NarrowedTokens,
    narrowed_storage,
)

DATA, PULL, CURATOR = (
    f"{name}@acme-ml.iam.gserviceaccount.com" for name in ("data", "pull", "cur")
)
IMAGES = "us-docker.pkg.dev/acme-ml/images"
API_TOKEN = "of-the-api"


@dataclass
class Project:
    """A bucket `photos` for reading, and a bucket `scratch` with a folder for writing."""

    url: str
    photos: str
    scratch: str
    tokens: NarrowedTokens
    grants: AccountGrants


@pytest.fixture(scope="module")
def project(gcs_server: FakeGcs) -> Iterator[Project]:
    photos, scratch = gcs_server.new_bucket(), gcs_server.new_bucket()
    gcs_server.upload(photos, "cats/1.jpg", b"cat")
    gcs_server.upload(scratch, "vision/old", b"old")
    gcs_server.upload(scratch, "visions/other", b"other")
    tokens = NarrowedTokens(DATA, frozenset({API_TOKEN}), (PULL, CURATOR))
    with narrowed_storage(tokens, gcs_server.url) as url:
        grants = AccountGrants(
            AccountTokens(lambda: Credentials(API_TOKEN), iam_endpoint=url, token_endpoint=url),
            data_account=DATA,
            data_places=[(photos, "", False), (scratch, "vision", True)],
            pool_accounts={"curated": CURATOR},
            pull_account=PULL,
            repositories=[IMAGES],
        )
        yield Project(url, photos, scratch, tokens, grants)


@pytest.fixture
def store(project: Project, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A storage client with the keys of a trial's code."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", project.url)
    token = project.grants.issue_data_keys("trial-4.1", "gpus")
    assert token.account == DATA
    return Client(project="-", credentials=Credentials(token.access_token))


def is_refused(call: Callable[..., Any], *arguments: Any) -> bool:
    try:
        call(*arguments)
    except Forbidden:
        return True
    return False


def test_trial_code_may_only_read_a_read_bucket(project: Project, store: Client) -> None:
    photos = store.bucket(project.photos)
    assert photos.blob("cats/1.jpg").download_as_bytes() == b"cat"
    assert [blob.name for blob in store.list_blobs(photos, prefix="cats/")] == ["cats/1.jpg"]
    assert is_refused(photos.blob("cats/2.jpg").upload_from_string, b"mine")
    assert is_refused(photos.blob("cats/1.jpg").delete)


def test_trial_code_may_write_only_in_the_granted_folder(project: Project, store: Client) -> None:
    scratch = store.bucket(project.scratch)
    for content in (b"new", b"newer"):
        scratch.blob("vision/new").upload_from_string(content)
        assert scratch.blob("vision/new").download_as_bytes() == content
    scratch.blob("vision/old").delete()
    assert [blob.name for blob in store.list_blobs(scratch, prefix="vision/")] == ["vision/new"]
    assert is_refused(scratch.blob("visions/other").download_as_bytes)
    assert is_refused(scratch.blob("visions/mine").upload_from_string, b"mine")
    assert is_refused(lambda: list(store.list_blobs(scratch)))


def test_pool_account_takes_precedence(project: Project) -> None:
    token = project.grants.issue_data_keys("trial-5.1", "curated")
    assert (token.account, project.tokens.whole[token.access_token]) == (CURATOR, CURATOR)
    assert AccountGrants(AccountTokens()).gives_data_keys("gpus") is False
    only = AccountGrants(AccountTokens(), pool_accounts={"curated": CURATOR})
    assert (only.gives_data_keys("curated"), only.gives_data_keys("gpus")) == (True, False)


def test_login_is_a_token_of_the_pull_account(project: Project) -> None:
    assert project.grants.gives_login(f"{IMAGES}/ml/trial@sha256:{'e' * 64}")
    for other in (f"{IMAGES}-2/trial", "us-docker.pkg.dev/acme-ml/images", "ubuntu", "gcr.io/a/b"):
        assert not project.grants.gives_login(other), other
    login = project.grants.issue_login("pull-4.1", f"{IMAGES}/trial:1")
    assert login.username == "oauth2accesstoken"
    assert project.tokens.whole[login.password] == PULL
    assert project.tokens.lifetimes[login.password] == PULL_SECONDS == 900


def test_refusal_by_google_does_not_reveal_a_token(project: Project) -> None:
    strange = AccountTokens(lambda: Credentials("stolen"), iam_endpoint=project.url)
    grants = AccountGrants(strange, data_account=DATA, pull_account=PULL)
    for call in (
        lambda: grants.issue_data_keys("trial-4.1", "gpus"),
        lambda: grants.issue_login("pull-4.1", f"{IMAGES}/trial"),
    ):
        with pytest.raises(OSError, match=re.compile("cannot issue a token for .*-4.1")) as refused:
            call()
        assert "stolen" not in str(refused.value)


def test_maximum_of_data_places_fits_into_a_boundary() -> None:
    # Ten places of maximal length: 63 characters for the bucket, 512 for the folder.
    places = [DataPlace("b" * 63, "f" * 511, writes=True)] * RULES_MAX
    rules = data_boundary(places, "trial-4.1")["accessBoundary"]["accessBoundaryRules"]
    assert len(rules) == RULES_MAX
    for rule in rules:
        assert len(rule["availabilityCondition"]["expression"]) <= CONDITION_CHARACTERS_MAX
