"""Idempotency keys: a mutation that is sent again happens once and is answered alike.

The key's row is put, if absent, in the commit that has the effect; of several requests at once
exactly one gets there. It then receives the answer, which whoever comes later reads: should the
process end in between, the next request makes the answer from what the effect left.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Header, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json

from control_plane.actors.step import Refused
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.guarded import Caller
from control_plane.api.services import Services
from control_plane.dispatch.kinds import parse_json
from control_plane.state.table import Conflict, Expect, Key, Put, Row, Unavailable, Write

log = logging.getLogger(__name__)

KEPT_MS = 24 * 3600 * 1000
KEY_CHARACTERS_MAX = 128

Beside = Callable[[object], tuple[Write, ...]]
"""What an effect has to commit beside itself, given the command's reply."""


def nothing(reply: object) -> tuple[Write, ...]:
    """What stands beside an effect that nobody has to know of."""
    return ()


Described = Callable[[Any], BaseModel]
"""Makes the answer from the effect's reply: the id of what it changed, or what it left, as plain
JSON.
"""


@dataclass(frozen=True)
class Once:
    """A request's key, None without one, the digest of what it asks for, and the user who asks."""

    key: Key | None
    digest: str
    by: str

    def carried_out(
        self,
        services: Services,
        effect: Callable[[Beside], object],
        described: Described,
        status: int = 200,
        *,
        is_secret: bool = False,
    ) -> Response:
        """Has the effect unless the key's row shows that it happened, and answers the request.

        An answer that is a secret is not stored, but made from the reply each time.

        Raises:
            ApiError: conflict, if the key was used for another request.
            And whatever `effect` and `described` raise.
        """
        if self.key is None:
            reply = effect(nothing)
            return _response(status, to_json(described(reply)))
        row = services.table.get(self.key)
        if row is None:
            due_ms = services.now_ms() + KEPT_MS
            row = self._first(services, effect, due_ms, status)
        return self._answer(services, row, described, is_secret)

    def effected(self, services: Services, effect: Callable[[Beside], object]) -> Any:
        """Has the effect unless the key's row shows that it happened, and returns its reply, for a
        request whose answer is not worth keeping. Raises as `carried_out` does.
        """
        if self.key is None:
            return effect(nothing)
        row = services.table.get(self.key)
        if row is None:
            row = self._first(services, effect, services.now_ms() + KEPT_MS, 200)
        return self._fields(row)["reply"]

    def part(self, number: int) -> "Once":
        """For one of the effects of a request that has several, numbered from 0."""
        if self.key is None or number == 0:
            return self
        sort = f"J#{number}#{self.key.sort}"
        return replace(self, key=self.key._replace(sort=sort))

    def _first(
        self, services: Services, effect: Callable[[Beside], object], due_ms: int, status: int
    ) -> Row:
        def beside(reply: object) -> tuple[Write, ...]:
            assert self.key is not None
            fields = {"digest": self.digest, "status": status, "reply": reply}
            return (Put(self.key, 1, to_json(fields), Expect.ABSENT, due_ms),)

        try:
            effect(beside)
        except Conflict as conflict:
            if conflict.key != self.key:
                raise
        except Refused:
            # Carried out by an attempt that did not learn it: the next is refused what it did.
            if self.key is None or services.table.get(self.key) is None:
                raise
        assert self.key is not None
        row = services.table.get(self.key)
        if row is None:
            raise ApiError(Code.UNAVAILABLE, "the request's key expired meanwhile; try again")
        return row

    def _answer(
        self, services: Services, row: Row, described: Described, is_secret: bool
    ) -> Response:
        fields = self._fields(row)
        if is_secret:
            return _response(fields["status"], to_json(described(fields["reply"])))
        if "answer" not in fields:
            fields["answer"] = to_json(described(fields["reply"])).decode()
            done = Put(row.key, row.revision + 1, to_json(fields), row.revision, row.due_ms)
            try:
                services.table.commit((done,))
            except Conflict:
                now = services.table.get(row.key)
                fields = parse_json(now.body) if now else fields
            except Unavailable as error:
                # It was carried out and can be answered; a repetition makes the answer anew.
                log.warning("the answer to a request was not kept: %s", error)
        return _response(fields["status"], fields["answer"].encode())

    def _fields(self, row: Row) -> dict[str, Any]:
        """What is kept of the request; ApiError conflict for another request."""
        fields: dict[str, Any] = parse_json(row.body)
        if fields["digest"] != self.digest:
            raise ApiError(
                Code.CONFLICT,
                "this Idempotency-Key was used for another request; give each request its own",
            )
        return fields


async def _once(
    request: Request,
    caller: Caller,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Once:
    body = await request.body()
    asked = f"{request.method} {request.url.path}\n".encode() + body
    digest = hashlib.sha256(asked).hexdigest()
    if idempotency_key is None:
        return Once(None, digest, caller.user)
    if not 0 < len(idempotency_key) <= KEY_CHARACTERS_MAX or not idempotency_key.isprintable():
        text = f"must be 1 to {KEY_CHARACTERS_MAX} printable characters"
        raise invalid("Idempotency-Key", text)
    key = Key(f"idempotency#{caller.user}", f"I#{idempotency_key}")
    return Once(key, digest, caller.user)


AskedOnce = Annotated[Once, Depends(_once)]
"""The type of a mutation's parameter that receives the request's key."""


def _response(status: int, content: bytes) -> Response:
    return Response(content, status, media_type="application/json")
