"""Requests to a database of Firestore, each sent once.

The client uses REST, because Google's client repeats requests by itself, which only the table may
do. Google's client also takes two and a half times as long to import as the authentication that
this module needs (docs/benchmarks.md: the cold starts). `FIRESTORE_EMULATOR_HOST` names an
emulator, as for Google's client.
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
# The limit for idle connections, enough for the concurrent requests of a process's threads.
CONNECTIONS_MAX = 32
# The size after which a query's response is cut off: the bodies of a page and a further row as
# base64, and the same size again for everything else.
QUERY_BYTES_MAX = (PAGE_BYTES_MAX + ROW_BYTES_MAX) * 8 // 3

_BLOCK_BYTES = 64 * 1024
# Errors after which nothing was written, and the same request may succeed later.
_RETRYABLE = frozenset({"ABORTED", "RESOURCE_EXHAUSTED"})
# Errors after which the request may have been executed, with a lost response.
_UNKNOWN_OUTCOME = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"}
)
_REFUSALS = frozenset(
    {"ALREADY_EXISTS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE"}
)
_NOT_SENT = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)

JsonObject = Mapping[str, Any]
Authorize = Callable[[str, str], Mapping[str, str]]
"""Returns the headers that authorize a request, given the method and the URL. Raises
GoogleAuthError.
"""


class RequestNotExecuted(Exception):
    """A request was not executed and may be sent again."""


class UnknownOutcome(Exception):
    """A request may have been executed or not; the response was lost or unreadable."""


class Refusal(Exception):
    """Firestore refused a request, and would refuse the request again.

    `status` is Google's name for the reason, such as NOT_FOUND.
    """

    def __init__(self, status: str, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class AccessDenied(Unavailable):
    """Firestore refused a request because the caller lacks a permission."""


def create_client(project: str, database: str) -> "FirestoreClient":
    """Create a client of a database with the environment's credentials, or of an emulator.

    FIRESTORE_EMULATOR_HOST names the emulator. Send no request to Firestore. The search for
    credentials may ask Google's metadata server. Raises Unavailable if the credentials are missing.
    """
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
    """Return the headers that authorize every request at an emulator."""
    return {"Authorization": "Bearer owner"}


class FirestoreClient:
    """The requests to a database of Firestore. Several threads may share a client.

    A request that fails raises one of four errors, and is never repeated: RequestNotExecuted,
    UnknownOutcome, Refusal, or Unavailable. Unavailable means a problem that needs a person, such
    as missing access.
    """

    def __init__(
        self,
        pool: urllib3.PoolManager,
        project: str,
        database: str,
        authorize: Authorize,
        endpoint: str = "https://firestore.googleapis.com",
        *,
        query_bytes_max: int = QUERY_BYTES_MAX,
        block_bytes: int = _BLOCK_BYTES,
    ) -> None:
        """Create a client. No request is sent.

        Args:
            pool: the connections.
            project: the project of the database.
            database: the name of the database.
            authorize: returns the headers that authorize a request.
            endpoint: the address of Firestore or an emulator.
            query_bytes_max: the bytes after which the response to a query is cut off.
            block_bytes: the bytes of a response that are read at once.
        """
        self.documents = f"projects/{project}/databases/{database}/documents"
        self._pool = pool
        self._authorize = authorize
        self._query_bytes_max = query_bytes_max
        self._block_bytes = block_bytes
        self._url = f"{endpoint}/v1/{self.documents}"

    def close(self) -> None:
        """Close the idle connections. A later request would open a new connection."""
        self._pool.clear()

    def commit(self, writes: Sequence[JsonObject], transaction: str = "") -> JsonObject:
        """Apply all writes atomically and return Firestore's response.

        The list `writeResults` in the response has a result for each write, in the order of
        `writes`. A response without a result for each write raises UnknownOutcome. With
        `transaction`, the writes end this transaction, and RequestNotExecuted also means that a
        document that the transaction has read was changed.
        """
        body: dict[str, Any] = {"writes": writes}
        if transaction:
            body["transaction"] = transaction
        content, _ = self._send("commit", body)
        answer = _parse_answer(content)
        if not isinstance(answer, dict) or len(answer.get("writeResults", ())) != len(writes):
            raise UnknownOutcome("a commit was answered without the results of its writes")
        return answer

    def get_documents(
        self, names: Sequence[str], fields: Sequence[str] = ()
    ) -> dict[str, JsonObject]:
        """Read documents and return the existing documents by name; omit missing documents.

        Args:
            names: the full names of the documents.
            fields: the fields to read; empty for all fields.
        """
        body: dict[str, Any] = {"documents": names}
        if fields:
            body["mask"] = {"fieldPaths": fields}
        content, _ = self._send("batchGet", body)
        documents = (_check_answer(answer).get("found") for answer in _parse_answers(content))
        return {document["name"]: document for document in documents if document}

    def begin_reading(
        self, names: Sequence[str], fields: Sequence[str]
    ) -> tuple[str, dict[str, JsonObject]]:
        """Begin a transaction that may write, and read documents in the transaction.

        Return the id of the transaction and the existing documents by name. A response without an
        id raises UnknownOutcome.

        Args:
            names: the full names of the documents.
            fields: the fields to read.
        """
        body = {
            "documents": names,
            "mask": {"fieldPaths": fields},
            # Without an option, the transaction could not write.
            "newTransaction": {"readWrite": {}},
        }
        content, _ = self._send("batchGet", body)
        answers = [_check_answer(answer) for answer in _parse_answers(content)]
        transaction = next(
            (answer["transaction"] for answer in answers if answer.get("transaction")), ""
        )
        if not transaction:
            raise UnknownOutcome("a transaction was begun without an id")
        documents = (answer.get("found") for answer in answers)
        return transaction, {document["name"]: document for document in documents if document}

    def rollback(self, transaction: str) -> None:
        """End a transaction without writes, and release the locks."""
        self._send("rollback", {"transaction": transaction})

    def run_query(self, query: JsonObject) -> tuple[list[JsonObject], bool]:
        """Run a structured query. Return the documents, and whether the result is complete.

        A response is cut off after `query_bytes_max`; then the result has the documents before the
        cut.
        """
        content, is_whole = self._send(
            "runQuery", {"structuredQuery": query}, self._query_bytes_max
        )
        answers = _parse_answers(content) if is_whole else _leading_objects(content)
        documents = (_check_answer(answer).get("document") for answer in answers)
        return [document for document in documents if document], is_whole

    def _send(
        self, verb: str, body: JsonObject, bytes_max: int | None = None
    ) -> tuple[bytes, bool]:
        """Send a request once. Return the body of the response, and whether the body is complete.

        A body is incomplete only after `bytes_max` bytes; a broken connection is UnknownOutcome.

        Args:
            verb: the method of the API, such as `commit`.
            body: the request as JSON.
            bytes_max: the size in bytes after which reading stops; None for no limit.

        Raises:
            RequestNotExecuted: no connection was made, or the credentials may be available later.
            UnknownOutcome: the connection failed after the request may have been sent.
            Unavailable: the credentials are missing or invalid.
            Exception: the result of `_to_exception` for a status other than 200.
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
                for block in answer.stream(self._block_bytes):
                    content += block
                    if bytes_max is not None and len(content) > bytes_max:
                        # The connection cannot be reused, because the rest is being sent.
                        answer.close()
                        return bytes(content), False
        except _NOT_SENT as error:
            raise RequestNotExecuted(str(error)) from None
        except urllib3.exceptions.HTTPError as error:
            raise UnknownOutcome(str(error)) from None
        return bytes(content), True


def _parse_answer(content: bytes) -> Any:
    """Parse the body of a successful response.

    Raises UnknownOutcome if the body is not JSON and therefore not Firestore's.
    """
    try:
        return json.loads(content)
    except ValueError:
        raise UnknownOutcome(f"Firestore's answer is not JSON: {content[:80]!r}") from None


def _parse_answers(content: bytes) -> list[JsonObject]:
    """Parse the body of a streaming response, a JSON array of objects.

    Raises UnknownOutcome for any other body.
    """
    answers = _parse_answer(content)
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise UnknownOutcome(f"Firestore's answer is no list of objects: {content[:80]!r}")
    return answers


def _check_answer(answer: JsonObject) -> JsonObject:
    """Return an object of a streaming response unchanged.

    If the object is an error, raise the exception that `_to_exception` returns.
    """
    if "error" in answer:
        raise _to_exception(200, json.dumps(answer).encode())
    return answer


def _leading_objects(content: bytes) -> Iterator[JsonObject]:
    """Yield the complete objects at the beginning of a JSON array that was cut off."""
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
    """Return the exception for an error response.

    The body is an error object, an array with an error object, or any other text. Return
    RequestNotExecuted for the statuses in _RETRYABLE, UnknownOutcome for _UNKNOWN_OUTCOME, and
    Refusal for _REFUSALS. Return AccessDenied for PERMISSION_DENIED. Without a status in the body,
    return RequestNotExecuted for HTTP 429, and UnknownOutcome for HTTP 500 and above. Return
    Unavailable otherwise.
    """
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
    if status == "PERMISSION_DENIED":
        return AccessDenied(shown)
    return Refusal(status, text) if status in _REFUSALS else Unavailable(shown)
