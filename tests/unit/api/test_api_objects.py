import hashlib
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest

from control_plane.access.principals import Role
from control_plane.objects.store import ObjectKey, SignedUrl
from tests.unit.api.cluster import NOW_MS, TOKENS, Cluster
from tests.unit.api.exchange import call

LOG = ObjectKey("logs/1")


def signed_put(cluster: Cluster, content: bytes, key: ObjectKey = LOG) -> SignedUrl:
    digest = hashlib.sha256(content).hexdigest()
    return cluster.objects.signed_url(
        "PUT", key, size=len(content), sha256=digest, expires_ms=NOW_MS + 1000
    )


def signed_get(cluster: Cluster, key: ObjectKey) -> str:
    return cluster.objects.signed_url("GET", key, expires_ms=NOW_MS + 1000).url


def test_signed_url_reads_without_a_token(cluster: Cluster) -> None:
    cluster.objects.put(LOG, b"line\n")
    answer = call(cluster.app, "GET", signed_get(cluster, LOG))
    assert (answer.status, answer.body) == (200, b"line\n")
    assert answer.headers["content-disposition"] == "attachment"
    assert answer.headers["content-type"] == "application/octet-stream"


def test_key_with_quoted_characters_is_found(cluster: Cluster) -> None:
    key = ObjectKey("checkpoints/1/a file?#&+é.pt")
    cluster.objects.put(key, b"weights")
    assert call(cluster.app, "GET", signed_get(cluster, key)).body == b"weights"


def test_token_does_not_replace_a_signature(cluster: Cluster) -> None:
    cluster.objects.put(LOG, b"line\n")
    answer = call(cluster.app, "GET", "/api/v1/objects/logs/1", token=TOKENS[Role.ADMIN])
    assert (answer.status, answer.code) == (403, "forbidden")


def test_signature_to_read_does_not_write(cluster: Cluster) -> None:
    assert call(cluster.app, "PUT", signed_get(cluster, LOG), body=b"x").status == 403


def test_missing_object_is_not_found(cluster: Cluster) -> None:
    assert call(cluster.app, "GET", signed_get(cluster, LOG)).code == "not_found"


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "logs/../../secret",
        "logs/%2e%2e/%2e%2e/secret",
        "logs/%252e%252e/secret",
        "logs/..%2fsecret",
        "logs/..%5csecret",
        "logs/..;/secret",
        "/etc/passwd",
        "%2fetc/passwd",
        "logs/a%00",
        "C:/secret",
        ".partial/x",
    ],
)
def test_rejects_paths_that_are_no_keys(cluster: Cluster, path: str) -> None:
    for method in ("GET", "PUT"):
        answer = call(cluster.app, method, f"/api/v1/objects/{path}?signature={'0' * 64}")
        assert answer.status in (403, 404, 422)
        assert answer.code in ("forbidden", "not_found", "invalid")


def test_upload_is_cut_off_at_the_signed_size(cluster: Cluster) -> None:
    # 4 bytes are signed, blocks have 3: the second block reaches 6 > 4, the third is never read.
    url = signed_put(cluster, b"four").url
    answer = call(cluster.app, "PUT", url, body=[b"fou", b"rxx", b"xx"])
    assert (answer.status, answer.code, answer.bytes_taken) == (413, "too_large", 6)
    assert cluster.objects.size(LOG) is None


def test_upload_with_a_different_digest_is_refused(cluster: Cluster) -> None:
    answer = call(cluster.app, "PUT", signed_put(cluster, b"four").url, body=b"five")
    assert (answer.status, answer.code) == (422, "invalid")
    assert cluster.objects.size(LOG) is None


def test_interrupted_upload_stores_no_object(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    answer = call(cluster.app, "PUT", signed_put(cluster, b"four").url, body=[b"fo"], hangs_up=True)
    assert (answer.status, answer.code) == (503, "unavailable")
    assert cluster.objects.size(LOG) is None
    assert caplog.records == []


def test_repeated_upload_of_an_object_is_no_error(cluster: Cluster) -> None:
    for _ in range(2):
        assert (
            call(cluster.app, "PUT", signed_put(cluster, b"same").url, body=b"same").status == 204
        )


def test_stored_object_is_not_replaced(cluster: Cluster) -> None:
    call(cluster.app, "PUT", signed_put(cluster, b"first").url, body=b"first")
    answer = call(cluster.app, "PUT", signed_put(cluster, b"other").url, body=b"other")
    assert (answer.status, answer.code) == (409, "conflict")
    assert b"".join(cluster.objects.get(LOG)) == b"first"


def test_object_below_an_object_is_a_conflict(cluster: Cluster) -> None:
    cluster.objects.put(LOG, b"x")
    url = signed_put(cluster, b"y", LOG / "below").url
    answer = call(cluster.app, "PUT", url, body=b"y")
    assert (answer.status, answer.code) == (409, "conflict")


def test_uploads_leave_no_temporary_files(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spare))
    call(cluster.app, "PUT", signed_put(cluster, b"good").url, body=b"good")
    call(cluster.app, "PUT", signed_put(cluster, b"good").url, body=b"evil")
    assert list(spare.iterdir()) == []


@pytest.mark.parametrize("number", ["-1", "1e3", "", "9" * 400, "١", " 4"])
def test_invalid_sizes_fit_no_signature(cluster: Cluster, number: str) -> None:
    url = signed_put(cluster, b"four").url.replace("size=4", f"size={quote(number)}")
    assert call(cluster.app, "PUT", url, body=b"four").status == 403
