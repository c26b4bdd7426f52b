"""Idempotency keys: a repeated mutation takes effect once, and repetitions get an equal answer.

The commit with the effect also creates the key's row, if absent. Of several concurrent requests,
exactly one commit succeeds. Afterwards the answer is added to the row for repetitions. If the
process ends before that, the next repetition builds the answer from the stored reply of the effect.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from control_plane.actors.step import CommandRefused
from control_plane.engine.actor_types import parse_json
from control_plane.errors import Code, RequestError
from control_plane.rows.user_rows import IDEMPOTENCY_KEY, IDEMPOTENCY_PART
from control_plane.services import Services
from control_plane.state.table import (
    Conflict,
    Expect,
    Key,
    Put,
    Row,
    StateTable,
    Unavailable,
    Write,
)

log = logging.getLogger(__name__)

KEPT_MS = 24 * 3600 * 1000

ExtraWrites = Callable[[object], tuple[Write, ...]]
"""Returns further writes for the commit of an effect, given the effect's reply.

An effect passes on the Conflict of these writes. IdempotentRequest then reads the answer of the
concurrent request with the same key.
"""


def no_extra_writes(reply: object) -> tuple[Write, ...]:
    """Return no writes, for an effect without an idempotency key."""
    return ()


Describe = Callable[[Any], object]
"""Builds the answer, a pydantic model, from the effect's reply, which is plain JSON.

The reply is the id of the changed object, or the values that the answer needs.
"""


def idempotency_row_key(user: str, name: str) -> Key:
    """Return the key of the row for a user's idempotency key with this name."""
    return Key(IDEMPOTENCY_KEY.partition_of(user), IDEMPOTENCY_KEY.sort + name)


def request_digest(method: str, path: str, body: bytes = b"") -> str:
    """Return the digest of a request, which detects a key that is used for another request."""
    return sha256(f"{method} {path}\n".encode() + body).hexdigest()


def has_taken_effect(table: StateTable, key: Key, digest: str) -> bool:
    """Return whether a request with this idempotency key and digest has taken effect.

    Raises TableError.
    """
    row = table.get(key)
    return row is not None and parse_json(row.body)["digest"] == digest


@dataclass(frozen=True)
class StoredAnswer:
    """The answer to a mutation."""

    status: int
    """The HTTP status code."""
    content: bytes
    """The JSON text of the body."""


@dataclass(frozen=True)
class IdempotentRequest:
    """A mutation that takes effect at most once per idempotency key."""

    key: Key | None
    """The key of the row for the request's idempotency key; None for a request without one."""
    digest: str
    """The digest of the request, which detects a key that is used for another request."""
    by: str
    """The user who sent the request."""

    def execute(
        self,
        services: Services,
        effect: Callable[[ExtraWrites], object],
        describe: Describe,
        status: int = 200,
        *,
        is_secret: bool = False,
    ) -> StoredAnswer:
        """Execute the effect unless an earlier request with the key did, and return the answer.

        The effect's commit also stores the key's row for KEPT_MS. Then the answer is stored in the
        row, so that repetitions get an equal answer. Without a key, execute the effect each time
        and store nothing.

        Args:
            services: the services with the state table.
            effect: executes the mutation. It commits the writes that its argument returns for the
                reply, and returns the reply.
            describe: builds the answer from the reply.
            status: the HTTP status code of the answer.
            is_secret: do not store the answer; build it from the stored reply for each repetition.

        Raises:
            RequestError: conflict, if the key was used for another request; unavailable, if the
                key's row is missing after the effect.
            Exception: an error of `effect` or `describe`. A CommandRefused of `effect` is ignored
                if the key's row exists: an earlier attempt has taken effect.
            Conflict: `effect` raised it for another row than the key's.
        """
        if self.key is None:
            reply = effect(no_extra_writes)
            return StoredAnswer(status, to_json(describe(reply)))
        row = services.table.get(self.key)
        if row is None:
            due_ms = services.now_ms() + KEPT_MS
            row = self._execute_first(services, effect, due_ms, status)
        return self._answer(services, row, describe, is_secret)

    def execute_for_reply(self, services: Services, effect: Callable[[ExtraWrites], object]) -> Any:
        """Execute the effect unless an earlier request with the key did, and return the reply.

        The commit also stores the key's row with the reply for KEPT_MS; no answer is stored. The
        reply of an earlier request is plain JSON. Without a key, execute the effect each time. Args
        and errors are as for `execute`.
        """
        if self.key is None:
            return effect(no_extra_writes)
        row = services.table.get(self.key)
        if row is None:
            row = self._execute_first(services, effect, services.now_ms() + KEPT_MS, 200)
        return self._stored_fields(row)["reply"]

    def part(self, number: int) -> "IdempotentRequest":
        """Return the request for the effect with this number, for a request with several effects.

        Effects are numbered from 0. Each effect gets a key of its own, except that effect 0 has the
        request's key. Return the request itself if it has no key.
        """
        if self.key is None or number == 0:
            return self
        sort = f"{IDEMPOTENCY_PART.sort}{number}#{self.key.sort}"
        return replace(self, key=self.key._replace(sort=sort))

    def _execute_first(
        self,
        services: Services,
        effect: Callable[[ExtraWrites], object],
        due_ms: int,
        status: int,
    ) -> Row:
        """Execute the effect and create the key's row in a single commit; return the row.

        If a concurrent request has created the key's row, nothing takes effect; return this row.
        Also return the row if the effect raises CommandRefused although the row exists.

        Args:
            services: the services with the state table.
            effect: executes the mutation, as in `execute`.
            due_ms: the time at which the row expires.
            status: the HTTP status code that the row stores.

        Raises:
            RequestError: unavailable, if the row is missing afterwards.
            Exception: any other error of `effect`, also a Conflict of another row.
        """

        def key_row(reply: object) -> tuple[Write, ...]:
            assert self.key is not None
            fields = {"digest": self.digest, "status": status, "reply": reply}
            return (Put(self.key, 1, to_json(fields), Expect.ABSENT, due_ms, expires=True),)

        try:
            effect(key_row)
        except Conflict as conflict:
            if conflict.key != self.key:
                raise
        except CommandRefused:
            # An earlier attempt may have taken effect without an answer. The actor then refuses the
            # repeated effect.
            if self.key is None or services.table.get(self.key) is None:
                raise
        assert self.key is not None
        row = services.table.get(self.key)
        if row is None:
            raise RequestError(
                Code.UNAVAILABLE, "the request's Idempotency-Key expired in the meantime; try again"
            )
        return row

    def _answer(
        self, services: Services, row: Row, describe: Describe, is_secret: bool
    ) -> StoredAnswer:
        """Return the answer in the key's row, or build and store a missing answer.

        Return the answer of a concurrent repetition that stored its answer first. If the table is
        unavailable, log this and return the answer without storing it. A secret answer is built
        each time and never stored.

        Raises:
            RequestError: conflict, if the key was used for another request.
            Exception: an error of `describe`.
        """
        fields = self._stored_fields(row)
        if is_secret:
            return StoredAnswer(fields["status"], to_json(describe(fields["reply"])))
        if "answer" not in fields:
            fields["answer"] = to_json(describe(fields["reply"])).decode()
            answered = Put(
                row.key, row.revision + 1, to_json(fields), row.revision, row.due_ms, expires=True
            )
            try:
                services.table.commit((answered,))
            except Conflict:
                now = services.table.get(row.key)
                fields = parse_json(now.body) if now else fields
            except Unavailable as error:
                # The effect is committed, so that the request can be answered. A repetition builds
                # the answer again.
                log.warning("the answer to a request was not stored: %s", error)
        return StoredAnswer(fields["status"], fields["answer"].encode())

    def _stored_fields(self, row: Row) -> dict[str, Any]:
        """Return the fields of the key's row: `digest`, `status`, `reply`, maybe `answer`.

        The values are the request's digest, the HTTP status, the effect's result, and the body of
        the answer, once stored.

        Raises:
            RequestError: conflict, if the key was used for another request.
        """
        fields: dict[str, Any] = parse_json(row.body)
        if fields["digest"] != self.digest:
            raise RequestError(
                Code.CONFLICT,
                "this Idempotency-Key was already used for another request; use a new one "
                "for each request",
            )
        return fields
