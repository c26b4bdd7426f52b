"""The token of an allocation at a store that heeds boundaries: it opens its own folder alone."""

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
    """Collect refused answers here, so that no later test gets the warnings about connections."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@dataclass
class Storage:
    """A bucket with checkpoints of several trials, and who issues tokens for it."""

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
def bucket(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The bucket with the token of an allocation."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    token = storage.issuer.issue_credentials("trial-2.3", storage.access)
    with closing(Client(project="-", credentials=Credentials(token.access_token))) as client:
        yield client.bucket(storage.bucket)


def is_refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> bool:
    try:
        call(*arguments, **options)
    except Forbidden:
        return True
    return False


def test_a_run_writes_below_its_epoch_alone(bucket: Any) -> None:
    assert not is_refused(bucket.blob("1/2/3/uuid/state.pth").upload_from_string, b"new")
    for key in ("1/2/1/uuid/state.pth", OTHERS, "state.pth", "1/2/33/uuid/state.pth", "1/2/3"):
        assert is_refused(bucket.blob(key).upload_from_string, b"new"), key


def test_a_run_reads_its_trial_and_where_it_began(bucket: Any) -> None:
    for key in ("1/2/1/uuid/state.pth", "7/9/1/uuid/state.pth"):
        assert bucket.blob(key).download_as_bytes() == b"weights"
    assert is_refused(bucket.blob(OTHERS).download_as_bytes)
    assert is_refused(bucket.blob("1/22/1/uuid/state.pth").download_as_bytes)


def test_a_run_lists_nobody_elses_checkpoints(bucket: Any) -> None:
    found = [blob.name for blob in bucket.list_blobs(prefix="1/2/1/")]
    assert found == ["1/2/1/uuid/state.pth"]
    for prefix in (None, "", "1/", "1/2", "1/3/", "1/22/", "7/9/1/uuid"):
        assert is_refused(lambda prefix=prefix: list(bucket.list_blobs(prefix=prefix))), prefix


def test_a_run_removes_and_changes_nothing(bucket: Any) -> None:
    for key in ("1/2/1/uuid/state.pth", OTHERS):
        assert is_refused(bucket.blob(key).delete)
        assert is_refused(bucket.blob(key).patch)


def test_nothing_is_open_without_a_token_or_with_one_of_another_bucket(
    storage: Storage, bucket: Any
) -> None:
    other = Client(project="-", credentials=Credentials("made-up")).bucket(storage.bucket)
    assert is_refused(other.blob("1/2/1/uuid/state.pth").download_as_bytes)
    assert is_refused(bucket.client.bucket("another").blob("1/2/1/x").download_as_bytes)


def test_a_token_ends_within_an_hour(storage: Storage) -> None:
    token = storage.issuer.issue_credentials("trial-2.3", storage.access)
    assert 0 < token.expires_ms / 1000 - time.time() <= SECONDS_MAX + 1
    assert token.access_token == storage.tokens.issued[-1]
    assert token.access_token not in repr(token)


@pytest.mark.parametrize(
    ("account", "caller", "said"),
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
def test_google_may_refuse(storage: Storage, account: str, caller: str, said: str) -> None:
    issuer = DownscopedTokenIssuer(
        account, lambda: Credentials(caller), iam_endpoint=storage.url, token_endpoint=storage.url
    )
    with pytest.raises(OSError, match=said):
        issuer.issue_credentials("trial-2.3", storage.access)


def test_google_may_not_answer(storage: Storage) -> None:
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


def test_a_function_issues_tokens_by_its_own_account(storage: Storage, tmp_path: Path) -> None:
    """The metadata of a function's machine have its token, which Google's own client finds."""
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
        # No credentials of this machine's, which may have some.
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


def test_a_boundary_is_as_large_as_google_takes_and_its_texts_are_texts() -> None:
    prefix = "a'b\"c\\" + "ü" * 200
    own, events = f"{prefix}/1/2", f"{prefix}/tensorboard/1/2"
    reads = (own, f"{prefix}/7/9/1/u")
    access = StorageAccess("b" * 63, (f"{own}/3", events), reads)
    boundary = access_boundary(access, "trial-2.3")["accessBoundary"]
    rules = boundary["accessBoundaryRules"]
    # One for each place that is written, and one for each that is read.
    assert len(rules) == 4 <= RULES_MAX
    expressions = [rule["availabilityCondition"]["expression"] for rule in rules]
    assert max(map(len, expressions)) <= CONDITION_CHARACTERS_MAX
    assert "/objects/a'b\\\"c\\\\üü" in expressions[0]


def test_a_token_is_what_an_agent_gets_of_the_issuer(storage: Storage) -> None:
    assert storage.issuer.store_type == "gcs"
    assert isinstance(storage.issuer.issue_credentials("t", storage.access), StorageToken)


@pytest.mark.parametrize("asks_delete", [False, True])
def test_an_upload_whose_answer_was_lost_still_wins_and_nothing_is_replaced(
    storage: Storage,
    bucket: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asks_delete: bool,
) -> None:
    from google.cloud.storage import Blob

    from detcloud.shared.gcs import GcsBucket
    from detcloud.storage import KeyExists
    from detcloud.storage.bucket_store import BucketStore

    monkeypatch.setattr(storage.tokens, "asks_delete_to_replace", asks_delete)
    store = BucketStore(GcsBucket(storage.bucket, credentials=bucket.client._credentials))
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


def test_a_trials_store_tells_what_is_not_there_from_what_is_forbidden(
    storage: Storage, bucket: Any, tmp_path: Path
) -> None:
    from detcloud.shared.gcs import GcsBucket
    from detcloud.storage import KeyNotFound, StorageError
    from detcloud.storage.bucket_store import BucketStore

    store = BucketStore(GcsBucket(storage.bucket, credentials=bucket.client._credentials))
    # Google says 403 to both: a boundary lets nobody list the whole bucket.
    assert is_refused(bucket.blob("1/2/1/uuid/none").download_as_bytes)
    with pytest.raises(KeyNotFound, match="nothing under 1/2/1/uuid/none"):
        store.get("1/2/1/uuid/none", tmp_path / "copy")
    # A name that begins alike is not the object.
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


def test_a_trials_store_writes_its_checkpoint_with_the_agents_token_and_renews_it(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detcloud.agent.issued_keys import StorageToken as AgentToken
    from detcloud.agent.storage_credentials import CredentialServer
    from detcloud.storage import StorageError, build_store

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)

    def fetch(holder: str) -> AgentToken:
        token = storage.issuer.issue_credentials(f"trial-{holder}", storage.access)
        # Google's client renews what ends within four minutes: each request asks the agent.
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
