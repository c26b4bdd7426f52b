"""Requests to one database of Firestore, each made once.

They go over REST: Google's client takes two and a half times as long to import as the
authentication alone that this needs (docs/benchmarks.md: the cold starts), and repeats requests by
itself, which only the table may do. `FIRESTORE_EMULATOR_HOST` names an emulator, as for Google's
client.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import urllib3
from google.auth import default as default_credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.urllib3 import Request

from control_plane.state.table import PAGE_BYTES_MAX, ROW_BYTES_MAX, Unavailable

SCOPE = "https://www.googleapis.com/auth/datastore"
CONNECT_SECONDS_MAX = 2.0
READ_SECONDS_MAX = 10.0
# Requests at once of all threads of a process that answers many.
CONNECTIONS_MAX = 32
# Where the answer to a query is broken off: a page of bodies and a row more, as base64 and with as
# much again for the rest.
QUERY_BYTES_MAX = (PAGE_BYTES_MAX + ROW_BYTES_MAX) * 8 // 3

_BLOCK_BYTES = 64 * 1024
# Nothing was done, and the same request may succeed later.
_RETRYABLE = frozenset({"ABORTED", "RESOURCE_EXHAUSTED"})
# A request may have been done although its answer was lost.
_UNKNOWN_OUTCOME = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"}
)
_REFUSALS = frozenset(
    {"ALREADY_EXISTS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE"}
)
_NOT_SENT = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)

JsonObject = Mapping[str, Any]
Authorize = Callable[[str, str], Mapping[str, str]]
"""Makes the headers that let a request, of a method and a URL, do what it asks for."""


class RequestNotExecuted(Exception):
    """A request did nothing, and may be sent again."""


class UnknownOutcome(Exception):
    """A request may have been done or not."""


class Refusal(Exception):
    """Firestore refused a request for good; `status` is Google's name for the reason."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def create_client(project: str, database: str) -> "FirestoreClient":
    """Create a client of a database with the environment's credentials. Raises Unavailable."""
    pool = urllib3.PoolManager(
        maxsize=CONNECTIONS_MAX,
        retries=False,
        timeout=urllib3.Timeout(connect=CONNECT_SECONDS_MAX, read=READ_SECONDS_MAX),
    )
    emulator = os.environ.get("FIRESTORE_EMULATOR_HOST")
    if emulator:
        return FirestoreClient(pool, project, database, authorize_owner, f"http://{emulator}")
    try:
        credentials, _ = default_credentials(scopes=(SCOPE,))
    except GoogleAuthError as error:
        raise Unavailable(f"database {database} of {project}: {error}") from None
    request = Request(pool)

    def authorize(method: str, url: str) -> Mapping[str, str]:
        headers: dict[str, str] = {}
        credentials.before_request(request, method, url, headers)
        return headers

    return FirestoreClient(pool, project, database, authorize)


def authorize_owner(method: str, url: str) -> Mapping[str, str]:
    """The headers with which an emulator lets everything be done."""
    return {"Authorization": "Bearer owner"}


class FirestoreClient:
    """Requests to one database; may be used concurrently by many threads.

    Every method raises RequestNotExecuted, UnknownOutcome, Refusal, or Unavailable for what only a
    person can mend.
    """

    def __init__(
        self,
        pool: urllib3.PoolManager,
        project: str,
        database: str,
        authorize: Authorize,
        endpoint: str = "https://firestore.googleapis.com",
    ) -> None:
        self.documents = f"projects/{project}/databases/{database}/documents"
        self._pool = pool
        self._authorize = authorize
        self._url = f"{endpoint}/v1/{self.documents}"

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()

    def commit(self, writes: Sequence[JsonObject]) -> JsonObject:
        """Make all writes or none."""
        content, _ = self._send("commit", {"writes": writes})
        answer = _parse_answer(content)
        if not isinstance(answer, dict) or len(answer.get("writeResults", ())) != len(writes):
            raise UnknownOutcome("a commit was answered without the results of its writes")
        return answer

    def get_documents(
        self, names: Sequence[str], fields: Sequence[str] = ()
    ) -> dict[str, JsonObject]:
        """Read the documents that exist of those names, whole or some of their fields."""
        body: dict[str, Any] = {"documents": names}
        if fields:
            body["mask"] = {"fieldPaths": fields}
        content, _ = self._send("batchGet", body)
        documents = (_check_answer(answer).get("found") for answer in _parse_answers(content))
        return {document["name"]: document for document in documents if document}

    def run_query(self, query: JsonObject) -> tuple[list[JsonObject], bool]:
        """Read the documents of a structured query, and whether these are all of them: an answer
        is broken off behind QUERY_BYTES_MAX.
        """
        content, is_whole = self._send("runQuery", {"structuredQuery": query}, QUERY_BYTES_MAX)
        answers = _parse_answers(content) if is_whole else _leading_objects(content)
        documents = (_check_answer(answer).get("document") for answer in answers)
        return [document for document in documents if document], is_whole

    def _send(
        self, verb: str, body: JsonObject, bytes_max: int | None = None
    ) -> tuple[bytes, bool]:
        """Send a request; its answer up to the block that passes `bytes_max`, and whether that is
        all of it.
        """
        url = f"{self._url}:{verb}?prettyPrint=false"
        try:
            headers = {"Content-Type": "application/json", **self._authorize("POST", url)}
        except GoogleAuthError as error:
            text = f"no access to Firestore: {error}"
            raise (RequestNotExecuted(text) if error.retryable else Unavailable(text)) from None
        request = json.dumps(body, separators=(",", ":")).encode()
        content = bytearray()
        try:
            with self._pool.request(
                "POST", url, body=request, headers=headers, preload_content=False, redirect=False
            ) as answer:
                if answer.status != 200:
                    raise _to_exception(answer.status, answer.read())
                for block in answer.stream(_BLOCK_BYTES):
                    content += block
                    if bytes_max is not None and len(content) > bytes_max:
                        # The connection cannot be used again: the rest is on its way.
                        answer.close()
                        return bytes(content), False
        except _NOT_SENT as error:
            raise RequestNotExecuted(str(error)) from None
        except urllib3.exceptions.HTTPError as error:
            raise UnknownOutcome(str(error)) from None
        return bytes(content), True


def _parse_answer(content: bytes) -> Any:
    """Parse an answer with the status of success. Raises UnknownOutcome where it is not JSON, and
    so not Firestore's.
    """
    try:
        return json.loads(content)
    except ValueError:
        raise UnknownOutcome(f"Firestore's answer is not JSON: {content[:80]!r}") from None


def _parse_answers(content: bytes) -> list[JsonObject]:
    """Parse the answers of a stream. Raises UnknownOutcome for anything else."""
    answers = _parse_answer(content)
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise UnknownOutcome(f"Firestore's answer is no list of objects: {content[:80]!r}")
    return answers


def _check_answer(answer: JsonObject) -> JsonObject:
    """One of the answers of a stream, which may be an error behind others."""
    if "error" in answer:
        raise _to_exception(200, json.dumps(answer).encode())
    return answer


def _leading_objects(content: bytes) -> Iterator[JsonObject]:
    """The whole objects at the beginning of an array that was broken off."""
    text = content.decode("utf-8", "ignore")
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            answer, end = decoder.raw_decode(text, start)
        except ValueError:
            return
        yield answer
        start = text.find("{", end)


def _to_exception(http_status: int, content: bytes) -> Exception:
    """The exception that an error means, which is an object or, from a stream, an array of one."""
    try:
        answer = json.loads(content)
        error = (answer[0] if isinstance(answer, list) else answer)["error"]
        status, text = str(error["status"]), str(error.get("message", ""))
    except (ValueError, LookupError, TypeError):
        status, text = "", content[:200].decode("utf-8", "replace")
    shown = f"{status or http_status}: {text}"
    if status in _RETRYABLE or (not status and http_status == 429):
        return RequestNotExecuted(shown)
    if status in _UNKNOWN_OUTCOME or (not status and http_status >= 500):
        return UnknownOutcome(shown)
    return Refusal(status, text) if status in _REFUSALS else Unavailable(shown)
