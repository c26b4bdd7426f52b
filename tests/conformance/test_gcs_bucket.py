"""Buckets of Google Cloud Storage: behaviour beyond the emulator and the suites."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from control_plane.checkpoint_stores.bucket_files import SigningFiles
from detcloud.shared import gcs as gcs_module
from detcloud.shared.bucket_errors import BucketError, NoSuchBucket, NoSuchKey, StoreBusy
from detcloud.shared.gcs import GcsBucket
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.gcs_signatures import MachineCredentials, SigningService
from tests.patience import ANSWER_SECONDS_MAX

pytestmark = pytest.mark.usefixtures("pauses")

KEY = "3/4/weights"
CONTENT = bytes(range(256)) * 4000


class FaultySession:
    """Connections with faults: resets, answers that break off after a block, and errors.

    `sent` has the URLs and ranges of the requests.
    """

    def __init__(self, session: Any) -> None:
        self.breaks = 0
        self.resets = 0
        self.statuses: list[int] = []
        self.sent: list[tuple[str, str | None]] = []
        self._session = session

    def get(self, url: str, *, headers: dict[str, str], **options: Any) -> Any:
        from requests import ConnectionError as BrokenConnection

        self.sent.append((url.partition("?")[2], headers.get("Range")))
        if self.resets:
            self.resets -= 1
            raise BrokenConnection("reset by peer")
        answer = self._session.get(url, headers=headers, **options)
        if self.statuses:
            answer.status_code = self.statuses.pop(0)
        elif self.breaks:
            self.breaks -= 1
            answer.iter_content = lambda size: _one_block(answer.raw.read(size))
        return answer


def _one_block(block: bytes) -> Iterator[bytes]:
    from requests.exceptions import ChunkedEncodingError

    yield block
    raise ChunkedEncodingError("broken off")


@pytest.fixture
def bucket(gcs: FakeGcs) -> GcsBucket:
    made = GcsBucket(gcs.new_bucket(), "of/a team")
    made.write(KEY, [CONTENT])
    return made


@pytest.fixture
def session(bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch) -> FaultySession:
    faulty = FaultySession(bucket._session)
    monkeypatch.setattr(bucket, "_session", faulty)
    return faulty


def test_gcs_download_resumes_with_the_same_content_after_a_break(
    bucket: GcsBucket, session: FaultySession, pauses: list[float]
) -> None:
    session.breaks = 2
    assert b"".join(bucket.read(KEY)) == CONTENT
    (_, first), (second_query, second), (_, third) = session.sent
    # Blocks of 262,144 bytes; later requests name the generation that was opened first.
    assert (first, second, third) == (None, "bytes=262144-", "bytes=524288-")
    assert "generation=" in second_query
    assert len(pauses) == 2


def test_gcs_connection_is_renewed_after_a_reset(
    bucket: GcsBucket, session: FaultySession, pauses: list[float]
) -> None:
    session.resets = 2
    assert b"".join(bucket.read(KEY, 1, 3)) == CONTENT[1:3]
    assert len(pauses) == 2
    session.resets = 100
    with pytest.raises(BucketError, match="reset by peer"):
        bucket.read(KEY)


@pytest.mark.parametrize("header", ["Content-Length", "Content-Range"])
def test_content_that_google_decompresses_is_an_error(
    bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, header: str
) -> None:
    """Google returns neither length nor range of an object that is declared compressed."""
    get = bucket._session.get

    def unpack(url: str, **options: Any) -> Any:
        answer = get(url, **options)
        answer.headers.pop(header, None)
        return answer

    monkeypatch.setattr(bucket._session, "get", unpack)
    work = partial(bucket.fetch, KEY, tmp_path / "copy")
    with pytest.raises(BucketError, match=f"the answer has no {header}"):
        work() if header == "Content-Range" else bucket.open(KEY)


def test_repeated_short_answers_of_gcs_end_with_an_error(
    bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    get = bucket._session.get

    def end_early(url: str, **options: Any) -> Any:
        answer = get(url, **options)
        answer.iter_content = lambda size: iter(())
        return answer

    monkeypatch.setattr(bucket._session, "get", end_early)
    with pytest.raises(BucketError, match="ends too early"):
        list(bucket.read(KEY))
    assert len(pauses) == 5


def test_permanently_broken_answers_of_gcs_are_an_error(
    bucket: GcsBucket, session: FaultySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Six attempts of 1,000 bytes each do not reach the end.
    monkeypatch.setattr(gcs_module, "_BLOCK_BYTES", 1000)
    session.breaks = 100
    with pytest.raises(BucketError, match="broken off"):
        list(bucket.read(KEY))


def test_gcs_file_is_fetched_in_parts_of_the_same_generation(
    bucket: GcsBucket, session: FaultySession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_module, "PART_BYTES", 400_000)
    session.breaks = 1
    bucket.fetch(KEY, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    (_, first), *others = session.sent
    # 1,024,000 bytes in parts of 400,000, the first of which broke off after 262,144.
    assert first == "bytes=0-399999"
    ranges = {"bytes=262144-399999", "bytes=400000-799999", "bytes=800000-1023999"}
    assert {requested for _, requested in others} == ranges
    assert all("generation=" in query for query, _ in others)


def test_busy_gcs_store_is_retried_and_a_refusal_is_not(
    bucket: GcsBucket, session: FaultySession, pauses: list[float]
) -> None:
    session.statuses = [503, 429]
    assert b"".join(bucket.read(KEY, 1, 3)) == CONTENT[1:3]
    assert len(pauses) == 2
    session.statuses = [403]
    with pytest.raises(BucketError, match="do not allow that"):
        bucket.read(KEY)
    assert len(pauses) == 2


@pytest.mark.parametrize("status", [429, 503])
def test_busy_gcs_store_raises_store_busy(
    bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    from requests import Request, Response

    methods: list[str] = []

    def refuse(method: str, url: str, **_: Any) -> Response:
        methods.append(method)
        answer = Response()
        answer.status_code, answer.request = status, Request(method, url).prepare()
        return answer

    # Google's client limits its repetitions by time, and pauses take no time in this test.
    monkeypatch.setattr(gcs_module, "REPEATED_SECONDS_MAX", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(bucket._client._http, "request", refuse)
        with pytest.raises(StoreBusy, match=f"{status}"):
            bucket.delete(KEY)
    assert set(methods) == {"DELETE"}
    assert bucket.object_size(KEY) == len(CONTENT)


def test_gcs_error_names_the_missing_object_or_bucket(gcs: FakeGcs, bucket: GcsBucket) -> None:
    with pytest.raises(NoSuchKey, match="3/4/none"):
        bucket.open("3/4/none")
    with pytest.raises(NoSuchBucket, match="no-such-bucket"):
        list(GcsBucket("no-such-bucket").list_objects(""))


def test_gcs_writer_recognises_its_own_object_after_a_lost_answer(
    bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.cloud.storage import Blob

    upload = Blob.upload_from_string

    def lose_the_answer(blob: Any, *content: Any, **options: Any) -> None:
        upload(blob, *content, **options)
        # The client's repeat gets this answer.
        upload(blob, *content, **options)

    monkeypatch.setattr(Blob, "upload_from_string", lose_the_answer)
    assert bucket.write("3/4/new", [b"x"], if_absent=True) is True
    assert bucket.write(KEY, [b"x"], if_absent=True) is False


def test_gcs_writer_without_delete_permission_keeps_the_existing_object(
    bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.api_core.exceptions import Forbidden
    from google.cloud.storage import Blob

    def refuse(blob: Any, *content: Any, **options: Any) -> None:
        raise Forbidden("storage.objects.delete")

    monkeypatch.setattr(Blob, "upload_from_string", refuse)
    assert bucket.write(KEY, [b"x"], if_absent=True) is False
    # The object is absent or may be replaced: the refusal has another cause.
    for key, if_absent in (("3/4/new", True), (KEY, False)):
        with pytest.raises(BucketError, match="403"):
            bucket.write(key, [b"x"], if_absent=if_absent)


def test_gcs_upload_in_parts_is_conditional(
    bucket: GcsBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from requests import Response

    monkeypatch.setattr(gcs_module, "PART_BYTES", 256 * 1024)
    # At other servers the client looks for the object before sending.
    monkeypatch.setattr(gcs_module, "_is_googles_own", lambda: True)
    session, sent = bucket._client._http, []
    request = session.request

    def refuse_uploads(method: str, url: str, **options: Any) -> Response:
        if "uploadType=resumable" not in url:
            return request(method, url, **options)  # type: ignore[no-any-return]
        sent.append(url)
        refused = Response()
        refused.status_code = 412
        return refused

    monkeypatch.setattr(session, "request", refuse_uploads)
    assert bucket.write(KEY, [CONTENT], if_absent=True) is False
    assert len(sent) == 1
    assert "ifGenerationMatch=0" in sent[0]
    assert b"".join(bucket.read(KEY)) == CONTENT


def test_failed_gcs_upload_is_ended(
    resumable_gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_module, "PART_BYTES", 256 * 1024)
    bucket = GcsBucket(resumable_gcs.new_bucket())
    requests: list[tuple[str, str, int]] = []
    request = bucket._session.request

    def note(method: str, url: str, **options: Any) -> Any:
        answer = request(method, url, **options)
        requests.append((method, url, answer.status_code))
        return answer

    monkeypatch.setattr(bucket._session, "request", note)

    def break_off() -> Iterator[bytes]:
        yield bytes(3 * 256 * 1024)
        raise ConnectionError("the disk is gone")

    with pytest.raises(ConnectionError, match="the disk is gone"):
        bucket.write(KEY, break_off())
    # Google's answer to a client that closes an open upload.
    [(method, session, status)] = requests
    assert (method, status) == ("DELETE", 499)
    assert "upload_id=" in session
    assert bucket.session_bytes(session) is None
    assert bucket.object_size(KEY) is None


def test_user_credentials_of_google_sign_no_urls(gcs: FakeGcs, bucket: GcsBucket) -> None:
    assert SigningFiles(bucket).signed_url(KEY, 60) is None
    service = SigningService()
    signing = GcsBucket(gcs.new_bucket(), "", MachineCredentials(), service)
    url = SigningFiles(signing).signed_url(KEY, 60)
    assert url is not None
    assert "response-content-disposition=attachment" in url
    assert service.signed == 1


def test_gcs_client_sends_no_extra_requests(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    # A new client: Google's sends extra requests only with its first request.
    bucket = GcsBucket(gcs.new_bucket())
    session, requests = bucket._client._http, list[tuple[str, str]]()
    request, others = session.request, set(threading.enumerate())

    def note_request(method: str, url: str, **options: Any) -> Any:
        requests.append((method, urlsplit(url).path))
        return request(method, url, **options)

    monkeypatch.setattr(session, "request", note_request)
    assert bucket.write("3/4/new", [b"x"])
    assert bucket.object_size("3/4/new") == 1
    bucket.delete("3/4/new")
    for thread in set(threading.enumerate()) - others:
        thread.join(ANSWER_SECONDS_MAX)
    objects = f"/storage/v1/b/{bucket._name}/o"
    one = f"{objects}/{quote('3/4/new', safe='')}"
    assert requests == [("POST", f"/upload{objects}"), ("GET", one), ("DELETE", one)]
