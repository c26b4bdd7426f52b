"""Tokens of allocations, against a store that enforces credential boundaries."""

import gc
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import Forbidden
from google.cloud.storage import Client
from google.oauth2.credentials import Credentials

from control_plane.agents.storage_credentials import SECONDS_MAX, StorageAccess, StorageToken
from control_plane.gcp.storage_credentials import DownscopedTokenIssuer, access_boundary
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.gcs_boundaries import (
    CONDITION_CHARACTERS_MAX,
    RULES_MAX,
    NarrowedTokens,
    narrowed_storage,
)
from tests.emulators.google_keys import GoogleKeys
from tests.patience import PROCESS_SECONDS_MAX

ROOT = Path(__file__).parents[3]

PYTHONPATH = os.pathsep.join(str(ROOT / name) for name in ("", "harness"))
ACCOUNT = "storage@team-project.iam.gserviceaccount.com"
API_TOKEN = "of-the-api"
OTHERS = "1/3/1/uuid/state.pth"


# Google's client closes the connection of a refused download only when the answer is collected.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="module", autouse=True)
def collect_refused_answers() -> Iterator[None]:
    """Collect refused answers in this module, so that no later test gets their warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@dataclass
class Storage:
    """A bucket with checkpoints of several trials, and the issuer of tokens for the bucket."""

    url: str
    bucket: str
    tokens: NarrowedTokens
    issuer: DownscopedTokenIssuer

    @property
    def access(self) -> StorageAccess:
        return StorageAccess(
            self.bucket,
            ("1/2/3", "tensorboard/1/2"),
            ("1/2", "7/9/1/uuid"),
        )


@pytest.fixture(scope="module")
def storage(gcs_server: FakeGcs) -> Iterator[Storage]:
    bucket = gcs_server.new_bucket()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", gcs_server.url)
        with closing(Client(project="-")) as client:
            for key in ("1/2/1/uuid/state.pth", "7/9/1/uuid/state.pth", OTHERS):
                client.bucket(bucket).blob(key).upload_from_string(b"weights")
    tokens = NarrowedTokens(ACCOUNT, frozenset({API_TOKEN}))
    with narrowed_storage(tokens, gcs_server.url) as url:
        issuer = DownscopedTokenIssuer(
            ACCOUNT, lambda: Credentials(API_TOKEN), iam_endpoint=url, token_endpoint=url
        )
        yield Storage(url, bucket, tokens, issuer)


@pytest.fixture
def credentials(storage: Storage) -> Credentials:
    """The token of an allocation."""
    token = storage.issuer.issue_credentials("trial-2.3", storage.access)
    return Credentials(token.access_token)


@pytest.fixture
def bucket(
    storage: Storage, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The bucket, opened with the token of an allocation."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    with closing(Client(project="-", credentials=credentials)) as client:
        yield client.bucket(storage.bucket)


def is_refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> bool:
    try:
        call(*arguments, **options)
    except Forbidden:
        return True
    return False


def test_run_writes_only_below_the_epoch(bucket: Any) -> None:
    assert not is_refused(bucket.blob("1/2/3/uuid/state.pth").upload_from_string, b"new")
    for key in ("1/2/1/uuid/state.pth", OTHERS, "state.pth", "1/2/33/uuid/state.pth", "1/2/3"):
        assert is_refused(bucket.blob(key).upload_from_string, b"new"), key


def test_run_reads_the_trial_and_the_first_checkpoint(bucket: Any) -> None:
    for key in ("1/2/1/uuid/state.pth", "7/9/1/uuid/state.pth"):
        assert bucket.blob(key).download_as_bytes() == b"weights"
    assert is_refused(bucket.blob(OTHERS).download_as_bytes)
    assert is_refused(bucket.blob("1/22/1/uuid/state.pth").download_as_bytes)


def test_run_lists_only_the_trials_checkpoints(bucket: Any) -> None:
    names = [blob.name for blob in bucket.list_blobs(prefix="1/2/1/")]
    assert names == ["1/2/1/uuid/state.pth"]
    for prefix in (None, "", "1/", "1/2", "1/3/", "1/22/", "7/9/1/uuid"):
        assert is_refused(lambda prefix=prefix: list(bucket.list_blobs(prefix=prefix))), prefix


def test_run_may_not_delete_or_change_objects(bucket: Any) -> None:
    for key in ("1/2/1/uuid/state.pth", OTHERS):
        assert is_refused(bucket.blob(key).delete)
        assert is_refused(bucket.blob(key).patch)


def test_unknown_token_and_foreign_bucket_are_refused(storage: Storage, bucket: Any) -> None:
    other = Client(project="-", credentials=Credentials("made-up")).bucket(storage.bucket)
    assert is_refused(other.blob("1/2/1/uuid/state.pth").download_as_bytes)
    assert is_refused(bucket.client.bucket("another").blob("1/2/1/x").download_as_bytes)


def test_token_expires_within_an_hour(storage: Storage) -> None:
    token = storage.issuer.issue_credentials("trial-2.3", storage.access)
    assert 0 < token.expires_ms / 1000 - time.time() <= SECONDS_MAX + 1
    assert token.access_token == storage.tokens.issued[-1]
    assert token.access_token not in repr(token)


@pytest.mark.parametrize(
    ("account", "caller", "expected"),
    [
        (
            ACCOUNT,
            "of-somebody-else",
            "cannot issue a token for trial-2.3: .*IAM_PERMISSION_DENIED",
        ),
        (
            "other@x.iam.gserviceaccount.com",
            API_TOKEN,
            "cannot issue a token for trial-2.3: .*NOT_FOUND",
        ),
    ],
)
def test_refused_token_is_an_os_error(
    storage: Storage, account: str, caller: str, expected: str
) -> None:
    issuer = DownscopedTokenIssuer(
        account, lambda: Credentials(caller), iam_endpoint=storage.url, token_endpoint=storage.url
    )
    with pytest.raises(OSError, match=expected):
        issuer.issue_credentials("trial-2.3", storage.access)


def test_unreachable_endpoints_are_an_os_error(storage: Storage) -> None:
    nowhere = "http://127.0.0.1:9"
    for places in ((nowhere, storage.url), (storage.url, nowhere)):
        issuer = DownscopedTokenIssuer(
            ACCOUNT,
            lambda: Credentials(API_TOKEN),
            iam_endpoint=places[0],
            token_endpoint=places[1],
        )
        with pytest.raises(OSError, match="cannot issue a token for"):
            issuer.issue_credentials("trial-2.3", storage.access)


def test_function_issues_tokens_with_the_metadata_account(storage: Storage, tmp_path: Path) -> None:
    """Google's client finds the token of the function's account at the metadata server."""
    function = MachineMetadata("function", GoogleKeys(), account="api@team-project")
    tokens = NarrowedTokens(ACCOUNT, function.access_tokens)
    code = f"""
from control_plane.agents.storage_credentials import StorageAccess
from control_plane.gcp.storage_credentials import DownscopedTokenIssuer
issuer = DownscopedTokenIssuer({ACCOUNT!r})
print(issuer.issue_credentials("trial-2.3", StorageAccess("b", ("1/2/3",), ("1/2",))).access_token)
"""
    with metadata_server(function) as host, narrowed_storage(tokens, storage.url) as url:
        places = {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "GCE_METADATA_ROOT": host}
        endpoints = {"DETCLOUD_IAM_ENDPOINT": url, "DETCLOUD_STS_ENDPOINT": url}
        # Hide credentials of the machine that runs the tests.
        own = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": PYTHONPATH}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**own, **places, **endpoints},
            capture_output=True,
            text=True,
            timeout=PROCESS_SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == tokens.issued[0]


def test_boundary_fits_googles_limits_and_escapes_texts() -> None:
    prefix = "a'b\"c\\" + "ü" * 200
    own, events = f"{prefix}/1/2", f"{prefix}/tensorboard/1/2"
    reads = (own, f"{prefix}/7/9/1/u")
    access = StorageAccess("b" * 63, (f"{own}/3", events), reads)
    boundary = access_boundary(access, "trial-2.3")["accessBoundary"]
    rules = boundary["accessBoundaryRules"]
    # A rule for each written and each read place.
    assert len(rules) == 4 <= RULES_MAX
    expressions = [rule["availabilityCondition"]["expression"] for rule in rules]
    assert max(map(len, expressions)) <= CONDITION_CHARACTERS_MAX
    assert "/objects/a'b\\\"c\\\\üü" in expressions[0]


def test_issuer_returns_storage_tokens(storage: Storage) -> None:
    assert storage.issuer.store_type == "gcs"
    assert isinstance(storage.issuer.issue_credentials("t", storage.access), StorageToken)


@pytest.mark.parametrize("asks_delete", [False, True])
def test_upload_with_a_lost_answer_succeeds_and_replaces_no_object(
    storage: Storage,
    bucket: Any,
    credentials: Credentials,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asks_delete: bool,
) -> None:
    from google.cloud.storage import Blob

    from detcloud.shared.gcs import GcsBucket
    from detcloud.storage import KeyExists
    from detcloud.storage.bucket_store import BucketStore

    monkeypatch.setattr(storage.tokens, "asks_delete_to_replace", asks_delete)
    store = BucketStore(GcsBucket(storage.bucket, credentials=credentials))
    upload = Blob.upload_from_string

    def upload_twice(blob: Any, *arguments: Any, **options: Any) -> None:
        upload(blob, *arguments, **options)
        upload(blob, *arguments, **options)

    (tmp_path / "source").write_bytes(b"weights")
    key = f"1/2/3/twice-{asks_delete}/state.pth"
    with monkeypatch.context() as patch:
        patch.setattr(Blob, "upload_from_string", upload_twice)
        store.put(key, tmp_path / "source")
    with pytest.raises(KeyExists, match="exists already"):
        store.put(key, tmp_path / "source")


def test_store_distinguishes_missing_from_forbidden_keys(
    storage: Storage, bucket: Any, credentials: Credentials, tmp_path: Path
) -> None:
    from detcloud.shared.gcs import GcsBucket
    from detcloud.storage import KeyNotFound, StorageError
    from detcloud.storage.bucket_store import BucketStore

    store = BucketStore(GcsBucket(storage.bucket, credentials=credentials))
    # Google answers 403 in both cases, since a boundary does not allow listing the whole bucket.
    assert is_refused(bucket.blob("1/2/1/uuid/none").download_as_bytes)
    with pytest.raises(KeyNotFound, match="nothing under 1/2/1/uuid/none"):
        store.get("1/2/1/uuid/none", tmp_path / "copy")
    # A common prefix is not an object.
    with pytest.raises(KeyNotFound):
        store.get("1/2/1/uuid/state", tmp_path / "copy")
    for key in (OTHERS, "1/3/1/uuid/none"):
        with pytest.raises(StorageError, match="403") as forbidden:
            store.get(key, tmp_path / "copy")
        assert not isinstance(forbidden.value, KeyNotFound)
    assert not (tmp_path / "copy").exists()
    for nothing in ("1/2/1/none", "7/9/1/uuid/none"):
        assert store.list(nothing) == {}
    with pytest.raises(StorageError, match=r"listing '1/3' in .*403"):
        store.list("1/3")


def test_store_writes_with_renewed_tokens_of_the_agent(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detcloud.agent.issued_keys import StorageToken as AgentToken
    from detcloud.agent.storage_credentials import CredentialServer
    from detcloud.storage import StorageError, build_store

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)

    def fetch(holder: str) -> AgentToken:
        token = storage.issuer.issue_credentials(f"trial-{holder}", storage.access)
        # Google's client renews tokens that expire within four minutes, here before each request.
        return AgentToken(token.access_token, int((time.time() + 120) * 1000))

    server = CredentialServer(tmp_path, fetch, print)
    try:
        for name, value in server.variables("2.3", google=True).items():
            monkeypatch.setenv(name, value)
        issued = len(storage.tokens.issued)
        store = build_store({"type": "gcs", "bucket": storage.bucket, "credentials": "given"})
        (tmp_path / "source").write_bytes(b"weights")
        store.put("1/2/3/own/state.pth", tmp_path / "source")
        store.get("1/2/3/own/state.pth", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"weights"
        assert store.list("1/2/3/own") == {"1/2/3/own/state.pth": 7}
        assert store.list("7/9/1/uuid") == {"7/9/1/uuid/state.pth": 7}
        assert len(storage.tokens.issued) - issued >= 4
        with pytest.raises(StorageError, match=r"storing '1/3/1/x' in gs://.*: 403 GET"):
            store.put("1/3/1/x", tmp_path / "source")
    finally:
        server.close()
