"""The contract of object stores: tests that every store must pass.

A suite is a subclass with fixtures: an empty `store`, the clock that checks signatures, and `send`,
which makes a signed request as a client without credentials and returns (status, body).
"""

import hashlib
import threading
from collections.abc import Callable, Iterator

import pytest

from control_plane.objects.store import (
    ObjectKey,
    ObjectNotFound,
    ObjectStore,
    SignedUrl,
    StoredObject,
)

Send = Callable[[SignedUrl, bytes], tuple[int, bytes]]
Wait = Callable[[int], None]

LOG = ObjectKey("logs/1/4.1/0")
# Far enough ahead for the clock of any machine under test, and within
# the 15 minutes that a signature may be valid.
VALIDITY_MS = 10 * 60 * 1000


class ObjectStoreContract:
    """The tests for every object store.

    `now_ms` is the time of the store's clock, and `wait` advances that clock.
    """

    @pytest.fixture
    def store(self) -> ObjectStore:
        raise AssertionError("a suite must define its store")

    @pytest.fixture
    def send(self) -> Send:
        raise AssertionError("a suite must define how to send a signed request")

    @pytest.fixture
    def now_ms(self) -> int:
        raise AssertionError("a suite must define the time of its store")

    @pytest.fixture
    def wait(self) -> Wait:
        raise AssertionError("a suite must define how to advance the time of its store")

    def test_stored_object_is_read(self, store: ObjectStore) -> None:
        assert store.put(LOG, b"line\n") is True
        assert b"".join(store.get(LOG)) == b"line\n"
        assert store.size(LOG) == 5

    def test_empty_object_is_stored(self, store: ObjectStore) -> None:
        store.put(LOG, b"")
        assert b"".join(store.get(LOG)) == b""
        assert store.size(LOG) == 0

    def test_content_is_stored_from_blocks_of_any_size(self, store: ObjectStore) -> None:
        blocks = [b"a" * 700_000, b"", b"b", b"c" * 300_000]
        store.put(LOG, iter(blocks))
        assert b"".join(store.get(LOG)) == b"".join(blocks)
        assert store.size(LOG) == 1_000_001

    def test_last_put_wins(self, store: ObjectStore) -> None:
        store.put(LOG, b"longer than the second")
        assert store.put(LOG, b"second") is True
        assert b"".join(store.get(LOG)) == b"second"

    def test_put_if_absent_keeps_the_existing_object(self, store: ObjectStore) -> None:
        assert store.put(LOG, b"first", if_absent=True) is True
        assert store.put(LOG, b"second", if_absent=True) is False
        assert b"".join(store.get(LOG)) == b"first"

    def test_exactly_one_of_many_writers_if_absent_wins(self, store: ObjectStore) -> None:
        wins: list[int] = []
        start = threading.Barrier(8)

        def write(number: int) -> None:
            start.wait()
            if store.put(LOG, bytes([number]) * 1000, if_absent=True):
                wins.append(number)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(wins) == 1
        assert b"".join(store.get(LOG)) == bytes(wins) * 1000

    def test_failing_content_stores_no_object(self, store: ObjectStore) -> None:
        def failing_blocks() -> Iterator[bytes]:
            yield b"half"
            raise ConnectionError("gone")

        with pytest.raises(ConnectionError):
            store.put(LOG, failing_blocks())
        assert store.size(LOG) is None
        assert list(store.list_objects(ObjectKey("logs/1"))) == []

    def test_failing_content_keeps_the_old_object(self, store: ObjectStore) -> None:
        def failing_blocks() -> Iterator[bytes]:
            yield b"half"
            raise ConnectionError("gone")

        store.put(LOG, b"old")
        with pytest.raises(ConnectionError):
            store.put(LOG, failing_blocks())
        assert b"".join(store.get(LOG)) == b"old"

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, None, b"0123456789"),
            (3, None, b"3456789"),
            (3, 4, b"3456"),
            (8, 4, b"89"),
            (0, 0, b""),
            (10, None, b""),
            (11, 5, b""),
        ],
    )
    def test_range_is_cut_at_the_end(
        self, store: ObjectStore, start: int, length: int | None, expected: bytes
    ) -> None:
        store.put(LOG, b"0123456789")
        assert b"".join(store.get(LOG, start=start, length=length)) == expected

    def test_missing_object_raises_at_the_call(self, store: ObjectStore) -> None:
        with pytest.raises(ObjectNotFound, match=r"logs/1/4\.1/0"):
            store.get(LOG)
        assert store.size(LOG) is None

    def test_folder_is_not_an_object(self, store: ObjectStore) -> None:
        store.put(LOG, b"x")
        assert store.size(ObjectKey("logs/1")) is None
        with pytest.raises(ObjectNotFound):
            store.get(ObjectKey("logs/1"))

    def test_replacement_does_not_mix_with_a_reader(self, store: ObjectStore) -> None:
        store.put(LOG, b"a" * 600_000)
        blocks = store.get(LOG)
        first = next(blocks)
        store.put(LOG, b"b" * 600_000)
        assert set(first + b"".join(blocks)) == {ord("a")}

    def test_deleted_object_is_gone(self, store: ObjectStore) -> None:
        store.put(LOG, b"x")
        store.delete(LOG)
        assert store.size(LOG) is None
        assert list(store.list_objects(ObjectKey("logs/1"))) == []
        assert store.put(LOG, b"again", if_absent=True) is True

    def test_deletion_of_a_missing_object_is_no_error(self, store: ObjectStore) -> None:
        store.delete(LOG)
        store.put(LOG, b"x")
        store.delete(ObjectKey("logs/1"))
        assert store.size(LOG) == 1

    def test_listing_is_sorted_by_the_bytes_of_the_keys(self, store: ObjectStore) -> None:
        # "." is 2E, "/" is 2F, "0" is 30, "Z" is 5A, "a" is 61; é is C3 A9.
        names = ["a.b", "a/1/x", "a/2", "a0", "Z", "é", ".metadata", "with space"]
        for name in names:
            store.put(ObjectKey(f"checkpoints/9/{name}"), name.encode())
        store.put(ObjectKey("checkpoints/90/other"), b"")
        ordered = [".metadata", "Z", "a.b", "a/1/x", "a/2", "a0", "with space", "é"]
        assert list(store.list_objects(ObjectKey("checkpoints/9"))) == [
            StoredObject(ObjectKey(f"checkpoints/9/{name}"), len(name.encode())) for name in ordered
        ]

    def test_listing_of_an_empty_prefix_is_empty(self, store: ObjectStore) -> None:
        assert list(store.list_objects(ObjectKey("checkpoints/1"))) == []

    def test_signed_get_reads(self, store: ObjectStore, send: Send, now_ms: int) -> None:
        store.put(LOG, b"line\n")
        signed = store.signed_url("GET", LOG, expires_ms=now_ms + VALIDITY_MS)
        assert send(signed, b"") == (200, b"line\n")

    def test_signed_put_writes(self, store: ObjectStore, send: Send, now_ms: int) -> None:
        content = b"log\n"
        status, _ = send(_signed_put(store, content, now_ms + VALIDITY_MS), content)
        assert 200 <= status < 300
        assert b"".join(store.get(LOG)) == content

    @pytest.mark.parametrize("sent", [b"LOG\n", b"lo", b"log\nand more"])
    def test_signed_put_refuses_different_content(
        self, store: ObjectStore, send: Send, now_ms: int, sent: bytes
    ) -> None:
        status, _ = send(_signed_put(store, b"log\n", now_ms + VALIDITY_MS), sent)
        assert 400 <= status < 500
        assert store.size(LOG) is None

    def test_signature_expires(
        self, store: ObjectStore, send: Send, now_ms: int, wait: Wait
    ) -> None:
        signed = store.signed_url("GET", LOG, expires_ms=now_ms + 1500)
        assert signed.expires_ms <= now_ms + 1500
        store.put(LOG, b"line\n")
        wait(1600)
        status, body = send(signed, b"")
        assert status == 403
        assert b"line" not in body

    def test_signature_is_for_a_single_key(
        self, store: ObjectStore, send: Send, now_ms: int
    ) -> None:
        store.put(LOG, b"line\n")
        other = ObjectKey("logs/1/4.1/1")
        store.put(other, b"other\n")
        signed = store.signed_url("GET", LOG, expires_ms=now_ms + VALIDITY_MS)
        moved = SignedUrl(
            signed.method,
            signed.url.replace("logs/1/4.1/0", "logs/1/4.1/1"),
            signed.headers,
            signed.expires_ms,
        )
        assert send(moved, b"")[0] == 403


def _signed_put(store: ObjectStore, content: bytes, expires_ms: int) -> SignedUrl:
    digest = hashlib.sha256(content).hexdigest()
    return store.signed_url("PUT", LOG, size=len(content), sha256=digest, expires_ms=expires_ms)
