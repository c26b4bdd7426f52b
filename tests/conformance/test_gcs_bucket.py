"""Buckets of Google Cloud Storage: behaviour beyond the emulator and the suites."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests

from control_plane.checkpoint_stores.bucket_files import SigningFiles
from detcloud.shared.bucket_errors import BucketError, NoSuchBucket, NoSuchKey, StoreBusy
from detcloud.shared.gcs import GcsBucket
from detcloud.shared.gcs_limits import GCS_LIMITS, GcsLimits
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.gcs_signatures import MachineCredentials, SigningService
from tests.patience import ANSWER_SECONDS_MAX

pytestmark = pytest.mark.usefixtures("pauses")

KEY = "3/4/weights"
CONTENT = bytes(range(256)) * 4000


Exchange = Callable[[], requests.Response]
"""Sends a request and returns the answer. Each call sends the request again."""
Fault = Callable[[str, str, Exchange], requests.Response]
"""Answers the request of a method and a URL."""


class FaultySession(requests.Session):
    """Connections with faults: resets, contents that break off after a block, and errors.

    `breaks`, `resets` and `statuses` are the next faults of downloads. `fault`, if any, answers all
    requests. `sent` has the queries and ranges of downloads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.breaks = 0
        self.resets = 0
        self.statuses: list[int] = []
        self.fault: Fault | None = None
        self.sent: list[tuple[str, str | None]] = []

    def request(self, method: Any, url: Any, *named: Any, **options: Any) -> requests.Response:
        exchange = partial(super().request, method, url, *named, **options)
        if self.fault is not None:
            return self.fault(method, url, exchange)
        if "alt=media" not in url:
            return exchange()
        self.sent.append((url.partition("?")[2], options["headers"].get("Range")))
        if self.resets:
            self.resets -= 1
            raise requests.ConnectionError("reset by peer")
        answer = exchange()
        if self.statuses:
            answer.status_code = self.statuses.pop(0)
        elif self.breaks:
            self.breaks -= 1
            with_blocks(answer, lambda size: _one_block(answer.raw.read(size)))
        return answer


def with_blocks(
    answer: requests.Response, blocks: Callable[[int], Iterator[bytes]]
) -> requests.Response:
    """Let the answer yield other blocks of content; `blocks` receives the size of a block."""
    answer.iter_content = blocks  # type: ignore[method-assign, assignment]
    return answer


def _one_block(block: bytes) -> Iterator[bytes]:
    yield block
    raise requests.exceptions.ChunkedEncodingError("broken off")


def refusal(status: int, method: str, url: str) -> requests.Response:
    """Return an answer without content to a request."""
    answer = requests.Response()
    answer.status_code = status
    answer.request = requests.Request(method, url).prepare()
    return answer


def lose_uploads(method: str, url: str, exchange: Exchange) -> requests.Response:
    """Lose the answer to each upload. The client's repeat gets the second answer."""
    if method == "POST":
        exchange()
    return exchange()


@pytest.fixture
def session() -> FaultySession:
    return FaultySession()


@pytest.fixture
def bucket(gcs: FakeGcs, session: FaultySession) -> GcsBucket:
    return open_bucket(gcs, session)


def open_bucket(gcs: FakeGcs, session: FaultySession, limits: GcsLimits = GCS_LIMITS) -> GcsBucket:
    """Create a bucket with an object, and return the bucket with faults."""
    made = GcsBucket(gcs.new_bucket(), "of/a team", session=session, limits=limits)
    made.write(KEY, [CONTENT])
    return made


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
    bucket: GcsBucket, session: FaultySession, tmp_path: Path, header: str
) -> None:
    """Google returns neither length nor range of an object that is declared compressed."""

    def unpack(method: str, url: str, exchange: Exchange) -> requests.Response:
        answer = exchange()
        answer.headers.pop(header, None)
        return answer

    session.fault = unpack
    work = partial(bucket.fetch, KEY, tmp_path / "copy")
    with pytest.raises(BucketError, match=f"the answer has no {header}"):
        work() if header == "Content-Range" else bucket.open(KEY)


def test_repeated_short_answers_of_gcs_end_with_an_error(
    bucket: GcsBucket, session: FaultySession, pauses: list[float]
) -> None:
    session.fault = lambda method, url, exchange: with_blocks(exchange(), lambda size: iter(()))
    with pytest.raises(BucketError, match="ends too early"):
        list(bucket.read(KEY))
    assert len(pauses) == 5


def test_permanently_broken_answers_of_gcs_are_an_error(
    gcs: FakeGcs, session: FaultySession
) -> None:
    # Six attempts of 1,000 bytes each do not reach the end.
    bucket = open_bucket(gcs, session, GcsLimits(block_bytes=1000))
    session.breaks = 100
    with pytest.raises(BucketError, match="broken off"):
        list(bucket.read(KEY))


def test_gcs_file_is_fetched_in_parts_of_the_same_generation(
    gcs: FakeGcs, session: FaultySession, tmp_path: Path
) -> None:
    name = gcs.new_bucket()
    GcsBucket(name).write(KEY, [CONTENT])
    bucket = GcsBucket(name, session=session, limits=GcsLimits(part_bytes=400_000))
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
    gcs: FakeGcs, session: FaultySession, status: int
) -> None:
    methods: list[str] = []

    def refuse(method: str, url: str, exchange: Exchange) -> requests.Response:
        methods.append(method)
        return refusal(status, method, url)

    # Google's client limits its repetitions by time, and pauses take no time in this test.
    bucket = open_bucket(gcs, session, GcsLimits(repeated_seconds_max=0.1))
    session.fault = refuse
    with pytest.raises(StoreBusy, match=f"{status}"):
        bucket.delete(KEY)
    session.fault = None
    assert set(methods) == {"DELETE"}
    assert bucket.object_size(KEY) == len(CONTENT)


def test_gcs_error_names_the_missing_object_or_bucket(gcs: FakeGcs, bucket: GcsBucket) -> None:
    with pytest.raises(NoSuchKey, match="3/4/none"):
        bucket.open("3/4/none")
    with pytest.raises(NoSuchBucket, match="no-such-bucket"):
        list(GcsBucket("no-such-bucket").list_objects(""))


def test_gcs_writer_recognises_its_own_object_after_a_lost_answer(
    bucket: GcsBucket, session: FaultySession
) -> None:
    session.fault = lose_uploads
    assert bucket.write("3/4/new", [b"x"], if_absent=True) is True
    assert bucket.write(KEY, [b"x"], if_absent=True) is False


def test_gcs_writer_without_delete_permission_keeps_the_existing_object(
    bucket: GcsBucket, session: FaultySession
) -> None:
    def refuse(method: str, url: str, exchange: Exchange) -> requests.Response:
        return refusal(403, method, url) if "uploadType" in url else exchange()

    session.fault = refuse
    assert bucket.write(KEY, [b"x"], if_absent=True) is False
    # The object is absent or may be replaced: the refusal has another cause.
    for key, if_absent in (("3/4/new", True), (KEY, False)):
        with pytest.raises(BucketError, match="403"):
            bucket.write(key, [b"x"], if_absent=if_absent)


def test_gcs_upload_in_parts_is_conditional(
    gcs: FakeGcs, session: FaultySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = open_bucket(gcs, session)
    sent: list[str] = []

    def refuse_uploads(method: str, url: str, exchange: Exchange) -> requests.Response:
        if "uploadType=resumable" not in url:
            return exchange()
        sent.append(url)
        return refusal(412, method, url)

    session.fault = refuse_uploads
    small = GcsLimits(part_bytes=256 * 1024)
    name = bucket.place.split("/")[2]
    in_parts = GcsBucket(name, "of/a team", session=session, limits=small)
    with monkeypatch.context() as googles_own:
        # At other servers the client looks for the object before sending.
        googles_own.delenv("STORAGE_EMULATOR_HOST")
        assert in_parts.write(KEY, [CONTENT], if_absent=True) is False
    assert len(sent) == 1
    assert "ifGenerationMatch=0" in sent[0]
    assert b"".join(bucket.read(KEY)) == CONTENT


def test_failed_gcs_upload_is_ended(resumable_gcs: FakeGcs, session: FaultySession) -> None:
    small = GcsLimits(part_bytes=256 * 1024)
    bucket = GcsBucket(resumable_gcs.new_bucket(), session=session, limits=small)
    requests_made: list[tuple[str, str, int]] = []

    def note(method: str, url: str, exchange: Exchange) -> requests.Response:
        answer = exchange()
        requests_made.append((method, url, answer.status_code))
        return answer

    session.fault = note

    def break_off() -> Iterator[bytes]:
        yield bytes(3 * 256 * 1024)
        raise ConnectionError("the disk is gone")

    with pytest.raises(ConnectionError, match="the disk is gone"):
        bucket.write(KEY, break_off())
    # The last request has Google's answer to a client that closes an open upload.
    method, url, status = requests_made[-1]
    assert (method, status) == ("DELETE", 499)
    assert "upload_id=" in url
    assert bucket.session_bytes(url) is None
    assert bucket.object_size(KEY) is None


def test_user_credentials_of_google_sign_no_urls(gcs: FakeGcs, bucket: GcsBucket) -> None:
    assert SigningFiles(bucket).signed_url(KEY, 60) is None
    service = SigningService()
    signing = GcsBucket(gcs.new_bucket(), "", MachineCredentials(), service)
    url = SigningFiles(signing).signed_url(KEY, 60)
    assert url is not None
    assert "response-content-disposition=attachment" in url
    assert service.signed == 1


def test_gcs_client_sends_no_extra_requests(gcs: FakeGcs, session: FaultySession) -> None:
    # A new client: Google's sends extra requests only with its first request.
    name = gcs.new_bucket()
    bucket = GcsBucket(name, session=session)
    made, others = list[tuple[str, str]](), set(threading.enumerate())

    def note_request(method: str, url: str, exchange: Exchange) -> requests.Response:
        made.append((method, urlsplit(url).path))
        return exchange()

    session.fault = note_request
    assert bucket.write("3/4/new", [b"x"])
    assert bucket.object_size("3/4/new") == 1
    bucket.delete("3/4/new")
    for thread in set(threading.enumerate()) - others:
        thread.join(ANSWER_SECONDS_MAX)
    objects = f"/storage/v1/b/{name}/o"
    one = f"{objects}/{quote('3/4/new', safe='')}"
    assert made == [("POST", f"/upload{objects}"), ("GET", one), ("DELETE", one)]
