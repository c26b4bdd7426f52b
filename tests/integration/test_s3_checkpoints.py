"""A checkpoint in S3, from the configuration to the trial, the reader and the deletion."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from control_plane.access.principals import Role
from control_plane.api.app import create_app
from control_plane.aws.object_store import S3ObjectStore
from control_plane.checkpoint_gc.collector import Collector
from control_plane.checkpoint_gc.stores import stores_of
from control_plane.checkpoint_stores.types.s3 import S3
from control_plane.config.section import Secret
from control_plane.objects.store import model_code_key
from detcloud.client.download import download_files
from detcloud.core import CheckpointDamaged
from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import Transport
from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_parts import S3PartsUpload
from detcloud.shared.trial_directory import TrialSpec
from detcloud.storage import StorageError, build_own_store
from lambdas.clock import now_ms
from tests.emulators.seaweedfs import SECRET_KEY, SeaweedFs
from tests.integration.trial_checkpoints import Trials, collect
from tests.integration.upload_client import SentBody, UploadClient
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, Cluster, archive, build_cluster
from tests.unit.api.exchange import call

PREFIX = "team/a"


@pytest.fixture
def bucket(s3: SeaweedFs) -> Bucket:
    return s3.bucket(PREFIX)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path)


def storage(bucket: Bucket) -> str:
    place = bucket.place
    fields = {
        "type": "s3",
        "bucket": place.name,
        "prefix": f"/{PREFIX}/",
        "endpoint_url": place.endpoint_url,
        "access_key": place.access_key,
        "secret_key": place.secret_key,
    }
    return f"{CONFIG}\ncheckpoint_storage: {json.dumps(fields)}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "trained"
    (path / "deep").mkdir(parents=True)
    (path / "deep" / "weights ü.bin").write_bytes(b"weights")
    return path


def checkpoints(bucket: Bucket) -> set[str]:
    """Return the UUIDs of checkpoints with files in the bucket."""
    return {key.split("/")[3] for key, _ in bucket.list_objects("1/")}


def test_checkpoint_is_stored_by_a_trial_and_fetched_from_the_bucket(
    cluster: Cluster, bucket: Bucket, folder: Path, tmp_path: Path
) -> None:
    trials = Trials(cluster, storage(bucket))
    uuid = trials.store(1, 5, folder)
    assert sorted(key for key, _ in bucket.list_objects("")) == [
        f"1/1/1/{uuid}/{name}" for name in ("deep/weights ü.bin", "manifest.json", "metadata.json")
    ]
    files = cluster.get(f"/checkpoints/{uuid[:8]}/files").json["items"]
    assert all(file["url"].startswith(f"{bucket.place.endpoint_url}/") for file in files)
    stranger = Transport("http://127.0.0.1:9", "dct_token", attempts_max=1)
    download_files(stranger, files, tmp_path / "fetched")
    assert (tmp_path / "fetched" / "deep" / "weights ü.bin").read_bytes() == b"weights"


def test_user_with_own_keys_reads_the_bucket_directly(
    cluster: Cluster, bucket: Bucket, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = Trials(cluster, storage(bucket)).store(1, 5, folder)
    place = cluster.get(f"/checkpoints/{uuid}/storage").json
    assert set(place["storage"]) == {"type", "bucket", "prefix", "endpoint_url"}
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(bucket.place.access_key))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    fetched = tmp_path / "fetched"
    build_own_store(place["storage"]).get(f"{place['path']}/deep/weights ü.bin", fetched)
    assert fetched.read_bytes() == b"weights"


def test_user_uploads_to_the_bucket_directly(
    cluster: Cluster, bucket: Bucket, folder: Path, tmp_path: Path
) -> None:
    Trials(cluster, storage(bucket))
    (folder / "large.bin").write_bytes(b"0123456789abcdef" * (1 << 18))
    with serve_app(cluster.app) as url:
        client = UploadClient(url, TOKENS[Role.USER])
        uploaded = client.trial(1).upload_checkpoint(folder, {"note": "n"}, steps_completed=5)
        prefix = f"1/1/0/{uploaded.uuid}"
        names = ["deep/weights ü.bin", "large.bin", "manifest.json", "metadata.json"]
        assert len(client.uploads.sent) == len(names)
        endpoint = f"{bucket.place.endpoint_url}/"
        assert all(body.url.startswith(endpoint) for body in client.uploads.sent)
        assert sorted(key for key, _ in bucket.list_objects("1/1/0/")) == [
            f"{prefix}/{name}" for name in names
        ]
        assert {finding["state"] for finding in uploaded.verify()} == {"OK"}
        fetched = uploaded.download(tmp_path / "fetched")
        assert (fetched / "large.bin").read_bytes() == (folder / "large.bin").read_bytes()
        uploaded.delete()
        collect(cluster)
        assert list(bucket.list_objects("1/1/0/")) == []
        client.http.close()


def test_keys_reach_the_trial_alone(cluster: Cluster, bucket: Bucket) -> None:
    trials = Trials(cluster, storage(bucket))
    spec = trials.specs["1.1"]
    assert spec["storage"]["secret_key"] == SECRET_KEY
    assert SECRET_KEY not in json.dumps(spec["config"])
    assert SECRET_KEY not in repr(TrialSpec(storage=spec["storage"]))
    for path in ("/experiments/1", "/experiments/1/history", "/experiments", "/trials/1"):
        assert SECRET_KEY not in cluster.get(path).body.decode()


def test_expired_checkpoints_are_deleted_from_the_bucket_and_kept_files_stay(
    cluster: Cluster, bucket: Bucket, folder: Path
) -> None:
    trials = Trials(cluster, storage(bucket))
    first, latest = trials.store(1, 5, folder), trials.store(1, 6, folder)
    other = trials.store(2, 5, folder)
    bucket.write("tensorboard/9/events", [b"of another experiment"])
    trials.kill(cluster)
    collect(cluster)
    # As configured, 1 best and 1 latest of each trial are kept; no checkpoint has a metric.
    assert checkpoints(bucket) == {latest, other}
    state = cluster.get(f"/checkpoints/{first}").json["state"]
    assert state == "DELETED"
    assert cluster.get(f"/checkpoints/{first}/files").status == 404


@pytest.mark.parametrize("is_replaced", [True, False])
def test_trial_resumes_from_the_previous_checkpoint_if_files_are_missing_or_replaced(
    s3: SeaweedFs,
    cluster: Cluster,
    bucket: Bucket,
    folder: Path,
    tmp_path: Path,
    is_replaced: bool,
) -> None:
    trials = Trials(cluster, storage(bucket))
    first, latest = trials.store(1, 5, folder), trials.store(1, 6, folder)
    key = f"{PREFIX}/1/1/1/{latest}/deep/weights ü.bin"
    named = {"Bucket": bucket.place.name, "Key": key}
    s3.client.delete_object(**named)
    if is_replaced:
        s3.client.put_object(**named, Body=b"weigh")
    spec = trials.begin_again("1.1", "preempted")
    with pytest.raises(CheckpointDamaged, match=r"deep/weights ü\.bin"):
        trials.restore(spec, tmp_path / "latest")
    spec = trials.begin_again("1.2", "errored")
    assert (spec["latest_checkpoint"]["uuid"], spec["steps_completed"]) == (first, 5)
    trials.restore(spec, tmp_path / "first")
    assert (tmp_path / "first" / "deep" / "weights ü.bin").read_bytes() == b"weights"
    assert cluster.get(f"/checkpoints/{latest}").json["state"] == "DAMAGED"
    assert cluster.get("/trials/1").json["restarts"] == 0


def test_unreachable_bucket_is_no_damage(
    cluster: Cluster, bucket: Bucket, folder: Path, tmp_path: Path
) -> None:
    trials = Trials(cluster, storage(bucket))
    latest = trials.store(1, 5, folder)
    spec = trials.begin_again("1.1", "preempted")
    for change in ({"bucket": "gone"}, {"secret_key": "another"}):
        with pytest.raises(StorageError, match=r"manifest\.json cannot be read"):
            trials.restore(spec | {"storage": spec["storage"] | change}, tmp_path / "none")
    assert cluster.get(f"/checkpoints/{latest}").json["state"] == "COMPLETED"


def test_large_file_is_uploaded_in_parts_and_resumes_after_an_interruption(
    cluster: Cluster, bucket: Bucket, folder: Path, set_upload_part_bytes: Callable[[int], None]
) -> None:
    Trials(cluster, storage(bucket))
    # S3's minimum: 11 MiB are parts of 5, 5 and 1 MiB.
    set_upload_part_bytes(5 << 20)
    (folder / "large.bin").write_bytes(b"0123456789abcdef" * (11 << 16))
    progress: list[tuple[int, int]] = []

    def cut_third(body: SentBody) -> None:
        if body.number == 3:
            raise DetcloudError("cut")

    with serve_app(cluster.app) as url:
        cut = UploadClient(url, TOKENS[Role.USER], 5 << 20)
        cut.uploads.before_upload = cut_third
        with pytest.raises(DetcloudError, match="cut"):
            cut.upload_one_after_another(folder)
        assert cut.uploads.sent_numbers == [1, 2]
        cut.http.close()
        client = UploadClient(url, TOKENS[Role.USER], 5 << 20)
        uploaded = client.trial(1).upload_checkpoint(
            folder, on_progress=lambda *sizes: progress.append(sizes)
        )
        # Only the third part, and whole small files: a file, the manifest and the metadata.
        assert client.uploads.sent_numbers == [3, None, None, None]
        assert (progress[0][0], progress[-1][0]) == (10 << 20, uploaded.size_bytes)
        assert {finding["state"] for finding in uploaded.verify()} == {"OK"}
        assert [*bucket.uploads_below("")] == []
        client.http.close()


def test_store_refuses_a_part_with_wrong_content_and_a_file_with_a_missing_part(
    bucket: Bucket, set_upload_part_bytes: Callable[[int], None]
) -> None:
    set_upload_part_bytes(5 << 20)
    upload = S3PartsUpload(bucket, "1/large", 6 << 20)
    url, headers = upload.sign_part(2, hashlib.md5(b"a" * (1 << 20)).hexdigest(), 60)
    with pytest.raises(HTTPError):
        urlopen(Request(url, b"b" * (1 << 20), headers, method="PUT"))
    with urlopen(Request(url, b"a" * (1 << 20), headers, method="PUT")):
        pass
    # A later process finds the same upload.
    later = S3PartsUpload(bucket, "1/large", 6 << 20)
    assert later.stored_parts() == [2]
    with pytest.raises(BucketError, match="part 1 of 1/large is missing"):
        later.join()


def test_interrupted_upload_is_aborted_after_the_trial_ends(
    s3: SeaweedFs, cluster: Cluster, bucket: Bucket, folder: Path
) -> None:
    trials = Trials(cluster, storage(bucket))
    kept = trials.store(1, 5, folder)
    uuid = "0000000a-0000-4000-8000-00000000000a"
    path = f"1/1/1/{uuid}"
    trials.report(1, "checkpoint_intent", uuid=uuid, steps_completed=6, path=path)
    bucket.write(f"{path}/metadata.json", [b"{}"])
    named = {"Bucket": bucket.place.name, "Key": f"{PREFIX}/{path}/weights"}
    s3.client.create_multipart_upload(**named)
    trials.kill(cluster)
    collect(cluster)
    assert checkpoints(bucket) == {kept}
    assert "Uploads" not in s3.client.list_multipart_uploads(Bucket=bucket.place.name)


def test_deleted_experiment_leaves_no_file_in_the_bucket(
    cluster: Cluster, bucket: Bucket, folder: Path
) -> None:
    trials = Trials(cluster, storage(bucket))
    trials.store(1, 5, folder)
    trials.store(2, 5, folder)
    # Stored by a run on a machine that ended before the report.
    unrecorded = [trials.store(2, steps, folder, recorded=False) for steps in (6, 7)]
    items = cluster.get("/experiments/1/unrecorded-checkpoints").json["items"]
    assert {(item["uuid"], item["is_own"]) for item in items} == {
        (name, True) for name in unrecorded
    }
    bucket.write("tensorboard/1/1/events", [b"of ours"])
    bucket.write("10/1/1/x/manifest.json", [b"of another experiment"])
    trials.kill(cluster)
    deleted = call(cluster.app, "DELETE", "/api/v1/experiments/1", token=TOKENS[Role.USER])
    assert deleted.status in (200, 202), deleted.body
    collect(cluster)
    assert cluster.get("/experiments/1").status == 404
    assert [key for key, _ in bucket.list_objects("")] == ["10/1/1/x/manifest.json"]


def test_missing_bucket_is_logged_and_retried(
    s3: SeaweedFs,
    cluster: Cluster,
    bucket: Bucket,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trials = Trials(cluster, storage(bucket))
    uuids = [trials.store(1, steps, folder) for steps in (5, 6)]
    contents = {key: b"".join(bucket.read(key)) for key, _ in bucket.list_objects("")}
    for key in contents:
        bucket.delete(key)
    s3.client.delete_bucket(Bucket=bucket.place.name)
    answer = cluster.get(f"/checkpoints/{uuids[0]}/files")
    assert (answer.status, answer.code) == (503, "unavailable")
    assert f"there is no bucket {bucket.place.name}" in answer.json["error"]["message"]
    trials.kill(cluster)
    services = cluster.services
    collector = Collector(stores_of(services))
    collector.collect(budget_seconds=60)
    assert f"there is no bucket {bucket.place.name}" in caplog.text
    assert SECRET_KEY not in caplog.text
    s3.client.create_bucket(Bucket=bucket.place.name)
    for key, content in contents.items():
        bucket.write(key, [content])
    collect(cluster)
    assert checkpoints(bucket) == {uuids[1]}


def test_cluster_configures_a_default_bucket(tmp_path: Path, bucket: Bucket) -> None:
    place = bucket.place
    default = S3(
        type="s3",
        bucket=place.name,
        prefix=PREFIX,
        endpoint_url=place.endpoint_url,
        access_key=Secret(str(place.access_key)),
        secret_key=Secret(str(place.secret_key)),
    )
    cluster = build_cluster(tmp_path, checkpoints=default)
    trials = Trials(cluster, CONFIG)
    assert trials.specs["1.1"]["storage"]["bucket"] == place.name


def test_model_code_is_uploaded_to_and_downloaded_from_the_bucket(
    tmp_path: Path, s3: SeaweedFs
) -> None:
    cluster = build_cluster(tmp_path)
    objects = S3ObjectStore(s3.bucket(), now_ms)
    app = create_app(replace(cluster.services, objects=objects, now_ms=now_ms))
    content = archive("train.py")
    digest = hashlib.sha256(content).hexdigest()
    offer = {"sha256": digest, "size": len(content)}
    offered = call(app, "POST", "/api/v1/model-code", token=TOKENS[Role.USER], content=offer)
    upload = offered.json["upload"]
    (tmp_path / "code").write_bytes(content)
    transport = Transport("http://127.0.0.1:9", "dct_token", attempts_max=1)
    with (tmp_path / "code").open("rb") as file:
        transport.upload(upload["path"], file, len(content), headers=upload["headers"])
    assert b"".join(objects.get(model_code_key(digest))) == content
    got = call(app, "GET", f"/api/v1/model-code/{digest}", token=TOKENS[Role.AGENT])
    assert (got.status, got.headers["cache-control"]) == (307, "no-store")
    with (tmp_path / "again").open("wb") as file:
        transport.download(got.headers["location"], file)
    assert (tmp_path / "again").read_bytes() == content
    missing = call(app, "GET", f"/api/v1/model-code/{'0' * 64}", token=TOKENS[Role.AGENT])
    assert missing.status == 404

    # Clients that may not follow redirects, such as the page, get the files through the API.
    cluster.objects.put(model_code_key(digest), content)
    assert cluster.create(CONFIG, model_code=digest).json["code_sha256"] == digest
    for path, field in (("", "items"), ("/file?path=train.py", "text")):
        shown = call(app, "GET", f"/api/v1/experiments/1/code{path}", token=TOKENS[Role.USER])
        assert shown.status == 200
        assert shown.json[field]
    assert shown.json["text"] == "print(1)\n"
