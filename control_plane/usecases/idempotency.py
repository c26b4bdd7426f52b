"""Idempotency keys: a mutation that is sent again happens once and is answered alike.

The key's row is put, if absent, in the commit that has the effect; of several requests at once
exactly one gets there. The answer is added to the row for later requests: should the process
end in between, the next request makes the answer from the reply of the effect.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import to_json

from control_plane.actors.step import CommandRefused
from control_plane.engine.actor_types import parse_json
from control_plane.errors import Code, RequestError
from control_plane.services import Services
from control_plane.state.table import Conflict, Expect, Key, Put, Row, Unavailable, Write

log = logging.getLogger(__name__)

KEPT_MS = 24 * 3600 * 1000

ExtraWrites = Callable[[object], tuple[Write, ...]]
"""Makes the writes that an effect has to commit with its own, given the command's reply."""


def no_extra_writes(reply: object) -> tuple[Write, ...]:
    """The extra writes of an effect that no request has to remember."""
    return ()


Describe = Callable[[Any], object]
"""Makes the answer, a model, from the effect's reply: the id of what it changed, or what it left,
as plain JSON.
"""


@dataclass(frozen=True)
class StoredAnswer:
    """The answer to a mutation: its status code, and its JSON."""

    status: int
    content: bytes


@dataclass(frozen=True)
class IdempotentRequest:
    """A request's key, None without one, the digest of what it asks for, and the user who asks."""

    key: Key | None
    digest: str
    by: str

    def execute(
        self,
        services: Services,
        effect: Callable[[ExtraWrites], object],
        describe: Describe,
        status: int = 200,
        *,
        is_secret: bool = False,
    ) -> StoredAnswer:
        """Carry out the effect unless the key's row shows that it happened, and answer the request.

        An answer that is a secret is not stored, but made from the reply each time.

        Raises:
            RequestError: conflict, if the key was used for another request.
            And whatever `effect` and `describe` raise.
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
        """Carry out the effect unless the key's row shows that it happened, and return its reply,
        for a request whose answer is not worth storing. Raises as `execute` does.
        """
        if self.key is None:
            return effect(no_extra_writes)
        row = services.table.get(self.key)
        if row is None:
            row = self._execute_first(services, effect, services.now_ms() + KEPT_MS, 200)
        return self._stored_fields(row)["reply"]

    def part(self, number: int) -> "IdempotentRequest":
        """The request for one of its effects, if it has several, numbered from 0."""
        if self.key is None or number == 0:
            return self
        sort = f"J#{number}#{self.key.sort}"
        return replace(self, key=self.key._replace(sort=sort))

    def _execute_first(
        self,
        services: Services,
        effect: Callable[[ExtraWrites], object],
        due_ms: int,
        status: int,
    ) -> Row:
        """Carry out the effect in one commit with the key's row; returns the row, or that of
        another attempt that was faster.
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
            # An earlier attempt carried it out and did not learn so; this one is refused for that.
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
                # It was carried out and can be answered; a repetition makes the answer again.
                log.warning("the answer to a request was not stored: %s", error)
        return StoredAnswer(fields["status"], fields["answer"].encode())

    def _stored_fields(self, row: Row) -> dict[str, Any]:
        """The fields of the key's row; RequestError conflict if it is of another request."""
        fields: dict[str, Any] = parse_json(row.body)
        if fields["digest"] != self.digest:
            raise RequestError(
                Code.CONFLICT,
                "this Idempotency-Key was already used for another request; use a new one "
                "for each request",
            )
        return fields
