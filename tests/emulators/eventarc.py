"""Eventarc on this machine: a front of Firestore's emulator that sends events of created documents
to functions.

Tests may delay, repeat and reorder events. An event is sent again until the function answers with
2xx. Events name the document, but lack the document's content, which no function reads.
"""

import heapq
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any
from urllib.parse import urlsplit

import urllib3

from tests.emulators.firestore_faults import FirestoreFaults
from tests.emulators.forwarding import RelayingHandler
from tests.emulators.http_server import serve_requests
from tests.patience import ANSWER_SECONDS_MAX, PATIENCE

CREATED = "google.cloud.firestore.document.v1.created"
CALL_SECONDS_MAX = 120 * PATIENCE
# Eventarc waits ten seconds and longer.
RETRY_SECONDS = 0.2
TRIES_MAX = 200
CALLS_AT_ONCE = 8
# The front's path for access tokens of service accounts.
TOKEN_PATH = "/token"
ACCESS_TOKEN = "of the emulator"

Note = Callable[[str, bytes], None]


@dataclass
class Trigger:
    """A trigger on created documents with paths like `pattern`, and the events for `url`.

    `lag_seconds`: maximal random delay of an event, which changes the order. `repeats`: number of
    additional deliveries. `refused`: number of answers without 2xx. `lost`: events that were never
    accepted.
    """

    pattern: str
    url: str
    lag_seconds: float = 0.0
    repeats: int = 0
    sent: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)

    def wants(self, path: str) -> bool:
        """Whether each part of the path is the pattern's, which may be a name in braces."""
        parts, wishes = path.split("/"), self.pattern.split("/")
        return len(parts) == len(wishes) and all(
            wish == part or (wish.startswith("{") and wish.endswith("}"))
            for wish, part in zip(wishes, parts, strict=True)
        )


def event_headers(project: str, database: str, path: str) -> dict[str, str]:
    """Return the headers of an event of a document that was created, in binary mode."""
    now = f"{datetime.now(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
    return {
        "content-type": "application/protobuf",
        "ce-id": secrets.token_hex(16),
        "ce-specversion": "1.0",
        "ce-type": CREATED,
        "ce-source": f"//firestore.googleapis.com/projects/{project}/databases/{database}",
        "ce-subject": f"documents/{path}",
        "ce-document": path,
        "ce-project": project,
        "ce-database": database,
        "ce-namespace": "(default)",
        "ce-location": "us-central1",
        "ce-time": now,
    }


class Eventarc:
    """A threaded delivery of events to triggers, until `close`. `faults`: the database's faults."""

    def __init__(self) -> None:
        self.triggers: dict[str, Trigger] = {}
        self.faults = FirestoreFaults()
        self._random = Random(1)
        self._pool = urllib3.PoolManager(maxsize=CALLS_AT_ONCE, retries=False)
        self._calls = ThreadPoolExecutor(CALLS_AT_ONCE)
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def is_wanted(self, path: str) -> bool:
        """Whether a trigger has the path of a document."""
        return any(trigger.wants(path) for trigger in list(self.triggers.values()))

    def publish(self, project: str, database: str, path: str) -> None:
        """Send an event of a created document to all matching triggers."""
        for trigger in list(self.triggers.values()):
            if trigger.wants(path):
                headers = event_headers(project, database, path)
                for _ in range(1 + trigger.repeats):
                    late = self._random.uniform(0, trigger.lag_seconds)
                    self._schedule(late, trigger, headers, 1)

    def close(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(ANSWER_SECONDS_MAX)
        self._calls.shutdown(cancel_futures=True)
        self._pool.clear()

    def _schedule(
        self, seconds: float, trigger: Trigger, headers: Mapping[str, str], tries: int
    ) -> None:
        def deliver() -> None:
            self._deliver(trigger, headers, tries)

        with self._changed:
            due = time.monotonic() + seconds
            heapq.heappush(self._waiting, (due, next(self._numbers), deliver))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                left = self._waiting[0][0] - time.monotonic() if self._waiting else None
                if not self._is_closed and (left is None or left > 0):
                    self._changed.wait(left)
                if self._is_closed:
                    return
                if not self._waiting or self._waiting[0][0] > time.monotonic():
                    continue
                deliver = heapq.heappop(self._waiting)[2]
            self._calls.submit(deliver)

    def _deliver(self, trigger: Trigger, headers: Mapping[str, str], tries: int) -> None:
        trigger.sent += 1
        try:
            answer = self._pool.request(
                "POST", trigger.url, headers=dict(headers), body=b"", timeout=CALL_SECONDS_MAX
            )
            taken = 200 <= answer.status < 300
        except urllib3.exceptions.HTTPError:
            taken = False
        if taken:
            return
        trigger.refused += 1
        if tries < TRIES_MAX:
            self._schedule(RETRY_SECONDS, trigger, headers, tries + 1)
        else:
            trigger.lost.append(headers["ce-document"])


@contextmanager
def eventarc(firestore: str) -> Iterator[tuple[Eventarc, str]]:
    """Serve a front of the Firestore at `firestore`. Yield the events of commits and the front's
    address for FIRESTORE_EMULATOR_HOST.
    """
    events = Eventarc()
    with firestore_front(events, firestore) as address:
        try:
            yield events, address
        finally:
            events.close()


@contextmanager
def firestore_front(
    events: Eventarc, firestore: str, on_request: Note = lambda method, content: None
) -> Iterator[str]:
    """Serve a further front of the Firestore at `firestore` that publishes commits to `events`.
    Yield the front's address.

    `on_request` is called with the method and the content of each request.
    """

    class Handler(_Handler):
        behind = urlsplit(firestore).netloc
        publish = staticmethod(events.publish)
        is_wanted = staticmethod(events.is_wanted)
        faults = events.faults
        note = staticmethod(on_request)

    with serve_requests(Handler) as address:
        yield address


class _Handler(RelayingHandler):
    """A connection of a client, with a connection to the emulator."""

    publish: Callable[[str, str, str], None]
    is_wanted: Callable[[str], bool]
    faults: FirestoreFaults
    note: Note

    def do_POST(self) -> None:
        """Pass a request on and publish the created documents."""
        body = self.read_body()
        if self.path == TOKEN_PATH:
            token = {"access_token": ACCESS_TOKEN, "expires_in": 3600, "token_type": "Bearer"}
            self.answer(200, json.dumps(token).encode())
            return
        method = self.path.partition("?")[0].rpartition(":")[2]
        self.note(method, body)
        number = self.faults.count(method)
        if refused := self.faults.refusal(method, number):
            self.answer(*refused)
            return
        is_commit = method == "commit"
        created = self._new_documents(json.loads(body)["writes"]) if is_commit else ()
        status, content, kind = self.ask("POST", self.path, body, dict(self.headers))
        if status == 200:
            for name in created:
                parts = name.split("/", 5)
                self.publish(parts[1], parts[3], _path(name))
        if self.faults.is_lost(method, number):
            self.close_connection = True
            return
        self.answer(status, content, kind)

    def _new_documents(self, writes: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the names of documents that a commit of these writes creates and that a trigger
        matches.
        """
        made = []
        for write in writes:
            if "update" not in write or not self.is_wanted(_path(write["update"]["name"])):
                continue
            name, condition = write["update"]["name"], write.get("currentDocument", {})
            if condition.get("exists") is False or (not condition and not self._exists(name)):
                made.append(name)
        return made

    def _exists(self, name: str) -> bool:
        owner = {"Authorization": "Bearer owner"}
        return self.ask("GET", f"/v1/{name}", None, owner)[0] == 200


def _path(name: str) -> str:
    """Return the path in a document's name, projects/PROJECT/databases/DATABASE/documents/PATH."""
    return name.split("/", 5)[5]
