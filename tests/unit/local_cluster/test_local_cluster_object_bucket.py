"""The bucket with the objects of a data folder, on SeaweedFS."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.objects.bucket_store import BucketObjectStore
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.store import model_code_key
from control_plane.state.table import Unavailable
from detcloud.shared.bucket_address import bucket_address
from detcloud.shared.s3 import Bucket
from local_cluster.adapters import LocalAdapters
from local_cluster.backup_archive import (
    BackupDescription,
    read_description,
    read_files,
    write_backup,
)
from local_cluster.cluster_id import load_or_create_cluster_id
from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.first_run import announce_start
from local_cluster.home import FILES_ID, HomeFolder, HomeInvalid
from local_cluster.object_bucket import (
    MARK,
    choose_files,
    claim_bucket,
    open_bucket,
    read_credentials,
)
from local_cluster.restore import restore_backup
from local_cluster.server_group import join_group
from local_cluster.service import ServiceSettings, open_service
from tests.conformance.lacking_stores import lacking
from tests.emulators.lacking_front import Feature, MissingFeature, lacking_front
from tests.emulators.postgresql import Postgresql
from tests.emulators.seaweedfs import ACCESS_KEY, SECRET_KEY, SeaweedFs
from tests.emulators.server import free_port

CODE = model_code_key("0" * 64)


@pytest.fixture
def home(tmp_path: Path) -> HomeFolder:
    return HomeFolder(tmp_path / "home")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return write_keys(tmp_path / "keys", SECRET_KEY)


def write_keys(path: Path, secret: str) -> Path:
    path.write_text(
        f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n"
    )
    path.chmod(0o600)
    return path


def address(bucket: Bucket, **changes: str) -> str:
    return bucket_address(replace(bucket.place, **changes))


def cluster_id(home: HomeFolder) -> str:
    with closing(home.state.open()) as table:
        return load_or_create_cluster_id(table)


def test_objects_are_stored_in_the_chosen_bucket(
    home: HomeFolder, keys: Path, s3: SeaweedFs
) -> None:
    bucket = s3.bucket("of/a lab")
    choose_files(home, address(bucket), keys)
    with closing(LocalAdapters(home).state_table):
        store = LocalAdapters(home).object_store
    assert isinstance(store, BucketObjectStore)
    store.put(CODE, b"code")
    assert dict(bucket.list_objects(""))[CODE.text] == 4
    assert not home.objects.exists()
    # A later start without options uses the record, which has no key.
    claim_bucket(home)
    choose_files(home, None, None)
    recorded = (home.folder / "files.json").read_text()
    assert str(keys) in recorded
    assert SECRET_KEY not in recorded


def test_environment_has_the_credentials_without_a_file(
    home: HomeFolder, s3: SeaweedFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = s3.bucket()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    choose_files(home, f"s3://{bucket.place.name}", None)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    # The record repeats the endpoint, so that a later start calls the same store.
    assert home.bucket[0] == f"s3://{bucket.place.name}?endpoint_url={s3.url}"
    claim_bucket(home)
    opened = open_bucket(home)
    assert opened is not None
    assert opened.is_on_loopback


def test_objects_of_another_cluster_are_refused(
    home: HomeFolder, keys: Path, s3: SeaweedFs, tmp_path: Path
) -> None:
    bucket = s3.bucket()
    choose_files(home, address(bucket), keys)
    other = HomeFolder(tmp_path / "other")
    with pytest.raises(HomeInvalid, match=f"has the objects of the cluster {cluster_id(home)}"):
        choose_files(other, address(bucket), keys)
    assert other.bucket == (None, None)
    choose_files(other, address(bucket, prefix="of another"), keys)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("secret", "check the secret key"),
        ("endpoint", "check the network, and whether the store runs"),
        ("bucket", "no bucket"),
    ],
)
def test_store_that_cannot_be_used_is_refused_and_not_recorded(
    home: HomeFolder, keys: Path, s3: SeaweedFs, fault: str, message: str
) -> None:
    bucket = s3.bucket()
    text = address(bucket)
    if fault == "secret":
        write_keys(keys, "of somebody else")
    elif fault == "endpoint":
        text = address(bucket, endpoint_url=f"http://127.0.0.1:{free_port()}")
    else:
        text = address(bucket, name="missing-bucket")
    with pytest.raises(HomeInvalid, match=f"^--files: .*{message}") as refusal:
        choose_files(home, text, keys)
    assert "somebody" not in str(refusal.value)
    assert home.bucket == (None, None)


def test_store_that_refuses_checksums_is_refused(
    home: HomeFolder, keys: Path, s3: SeaweedFs
) -> None:
    bucket = s3.bucket()
    store = lacking("s3", Feature.CHECKSUMS, MissingFeature.REFUSES, s3.url)
    with lacking_front(store) as front:
        with pytest.raises(HomeInvalid, match="cannot upload model code to this store"):
            choose_files(home, address(bucket, endpoint_url=front.url), keys)
        assert front.met > 0
    assert home.bucket == (None, None)


def test_bucket_that_fails_later_is_refused_at_the_next_start(
    home: HomeFolder, keys: Path, s3: SeaweedFs
) -> None:
    choose_files(home, address(s3.bucket()), keys)
    write_keys(keys, "of somebody else")
    with pytest.raises(HomeInvalid, match="check the secret key"):
        claim_bucket(home)
    write_keys(keys, SECRET_KEY)
    claim_bucket(home)


def test_credentials_that_others_can_read_are_refused(keys: Path) -> None:
    keys.chmod(0o640)
    with pytest.raises(HomeInvalid, match=f"chmod 600 {keys}"):
        read_credentials(keys)


@pytest.mark.parametrize(
    "text",
    ["", "aws_access_key_id = hidden", "[default]\naws_secret_access_key = hidden", "\0[hidden"],
)
def test_incomplete_credentials_are_refused_without_the_content(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(HomeInvalid, match=r"^--files-credentials: .*aws_access_key_id") as refusal:
        read_credentials(path)
    assert "hidden" not in str(refusal.value)


def test_temporary_credentials_are_refused(keys: Path) -> None:
    keys.write_text(f"{keys.read_text()}aws_session_token = hidden\n")
    with pytest.raises(HomeInvalid, match="are temporary; write lasting keys"):
        read_credentials(keys)


def test_missing_credentials_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HomeInvalid, match="keys cannot be read: No such file"):
        read_credentials(tmp_path / "keys")


@pytest.mark.parametrize("choice", [None, "/srv/files"])
def test_credentials_without_a_bucket_are_refused(
    home: HomeFolder, keys: Path, choice: str | None
) -> None:
    with pytest.raises(HomeInvalid, match="needs --files with the address"):
        choose_files(home, choice, keys)


def test_objects_are_not_left_behind_in_a_folder_or_a_bucket(
    home: HomeFolder, keys: Path, s3: SeaweedFs, tmp_path: Path
) -> None:
    bucket, other = s3.bucket(), s3.bucket()
    adapters = LocalAdapters(home)
    DirectoryObjectStore(home.objects, adapters.url_signer).put(CODE, b"code")
    with pytest.raises(HomeInvalid, match=f"copy the objects to s3://{bucket.place.name} "):
        choose_files(home, address(bucket), keys)
    bucket.write(CODE.text, (b"code",))
    choose_files(home, address(bucket), keys)
    with pytest.raises(HomeInvalid, match=f"copy the objects to s3://{other.place.name} "):
        choose_files(home, address(other), keys)
    with pytest.raises(HomeInvalid, match=f"copy the objects to {tmp_path}/files/objects "):
        choose_files(home, str(tmp_path / "files"), None)
    (tmp_path / "files/objects").mkdir(parents=True)
    choose_files(home, str(tmp_path / "files"), None)
    assert home.bucket == (None, None)
    assert home.files == tmp_path / "files"


def test_folder_for_checkpoints_stays(
    home: HomeFolder, keys: Path, s3: SeaweedFs, tmp_path: Path
) -> None:
    choose_files(home, str(tmp_path / "files"), None)
    choose_files(home, address(s3.bucket()), keys)
    assert home.checkpoints == tmp_path / "files/checkpoints"
    choose_files(home, str(tmp_path / "files"), None)
    assert home.bucket == (None, None)


def test_start_names_the_bucket_and_an_address_that_others_cannot_reach(
    home: HomeFolder, keys: Path, s3: SeaweedFs, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = s3.bucket("lab")
    choose_files(home, address(bucket), keys)
    service = open_service(home, ServiceSettings("127.0.0.1", 0), None)
    service.close()
    cluster = build_embedded_cluster(home, "me")
    announce_start(home, cluster, service)
    cluster.table.close()
    text = capsys.readouterr().out
    assert f"model code and logs are in s3://{bucket.place.name}/lab at {s3.url}" in text
    assert "other machines cannot reach this address of the store" in text
    assert f"checkpoints are in {home.checkpoints}" in text


class TestBackup:
    """Backups and restores of a cluster with its objects in a bucket."""

    @pytest.fixture
    def bucket(self, home: HomeFolder, keys: Path, s3: SeaweedFs) -> Bucket:
        bucket = s3.bucket("of/a lab")
        choose_files(home, address(bucket), keys)
        cluster = build_embedded_cluster(home, "me")
        cluster.adapters.object_store.put(CODE, b"code")
        cluster.mark.advance()
        cluster.table.close()
        return bucket

    def write(self, home: HomeFolder, archive: Path) -> BackupDescription:
        return write_backup(home, archive, lambda _: BackupDescription(cluster_id(home), 1))

    def test_backup_names_the_bucket_and_leaves_objects_out(
        self, home: HomeFolder, bucket: Bucket, tmp_path: Path
    ) -> None:
        # A folder from the time before the bucket is no part of the cluster.
        home.objects.mkdir()
        (home.objects / "old").touch()
        archive = tmp_path / "b.tar"
        assert self.write(home, archive).bucket == address(bucket)
        assert read_description(archive).bucket == address(bucket)
        assert not [f.name for f in read_files(archive) if f.name.startswith("objects/")]
        assert SECRET_KEY.encode() not in archive.read_bytes()

    def test_restored_cluster_uses_the_bucket_again(
        self, home: HomeFolder, bucket: Bucket, keys: Path, tmp_path: Path
    ) -> None:
        self.write(home, tmp_path / "b.tar")
        other = HomeFolder(tmp_path / "other")
        assert restore_backup(other, tmp_path / "b.tar").backup.bucket == address(bucket)
        choose_files(other, address(bucket), keys)
        store = LocalAdapters(other).object_store
        assert b"".join(store.get(CODE)) == b"code"

    def test_objects_of_a_backup_are_restored_into_the_bucket(
        self, home: HomeFolder, keys: Path, s3: SeaweedFs, tmp_path: Path
    ) -> None:
        cluster = build_embedded_cluster(home, "me")
        cluster.adapters.object_store.put(CODE, b"code")
        cluster.mark.advance()
        cluster.table.close()
        self.write(home, tmp_path / "b.tar")
        bucket = s3.bucket()
        bucket.write(CODE.text, (b"copied",))
        choose_files(home, address(bucket), keys)
        restore_backup(home, tmp_path / "b.tar")
        assert b"".join(bucket.read(CODE.text)) == b"code"
        claim_bucket(home)


class TestGroup:
    """Servers with a common state on PostgreSQL."""

    @pytest.fixture
    def homes(self, tmp_path: Path, postgres: Postgresql) -> list[HomeFolder]:
        url = postgres.new_schema()
        homes = [HomeFolder(tmp_path / name) for name in "ab"]
        for home in homes:
            home.set_state_url(url)
        return homes

    def test_servers_share_a_bucket(
        self, homes: list[HomeFolder], keys: Path, s3: SeaweedFs
    ) -> None:
        bucket = s3.bucket()
        for home in homes:
            choose_files(home, address(bucket), keys)
            join_group(home)
        assert [key for key, _ in bucket.list_objects("")] == [MARK]

    def test_server_with_another_bucket_or_a_folder_is_refused(
        self, homes: list[HomeFolder], keys: Path, s3: SeaweedFs
    ) -> None:
        bucket, other = s3.bucket(), s3.bucket()
        first, second = homes
        choose_files(first, address(bucket), keys)
        join_group(first)
        with pytest.raises(Unavailable, match=f"first server uses s3://{bucket.place.name}"):
            join_group(second)
        choose_files(second, address(other), keys)
        with pytest.raises(Unavailable, match="is not the folder of objects"):
            join_group(second)
        choose_files(second, address(bucket), keys)
        join_group(second)

    def test_move_to_a_bucket_excludes_servers_with_the_folder(
        self, homes: list[HomeFolder], keys: Path, s3: SeaweedFs, tmp_path: Path
    ) -> None:
        bucket = s3.bucket()
        first, second = homes
        for home in homes:
            home.set_files(tmp_path / "files")
            join_group(home)
        choose_files(first, address(bucket), keys)
        join_group(first)
        assert not (tmp_path / "files" / FILES_ID).exists()
        with pytest.raises(Unavailable, match="is not the folder of objects"):
            join_group(second)
        choose_files(second, address(bucket), keys)
        join_group(second)
        # The way back.
        choose_files(first, str(tmp_path / "files"), None)
        join_group(first)
        with pytest.raises(Unavailable, match="is not the folder of objects"):
            join_group(second)

    def test_experiments_need_a_store_for_checkpoints(
        self, homes: list[HomeFolder], keys: Path, s3: SeaweedFs
    ) -> None:
        adapters = LocalAdapters(homes[0])
        assert adapters.checkpoint_remedy == ""
        choose_files(homes[0], address(s3.bucket()), keys)
        assert "set checkpoint_storage" in adapters.checkpoint_remedy
