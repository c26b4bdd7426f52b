"""Types of handlers' parameters, for values that FastAPI reads from the request."""

from typing import Annotated

from fastapi import Depends, Header, Path, Query, Request

from control_plane.api.route_guards import Caller
from control_plane.errors import invalid
from control_plane.queries.pages import PageRequest
from control_plane.services import Services
from control_plane.usecases.idempotency import (
    IdempotentRequest,
    idempotency_row_key,
    request_digest,
)

PAGE_ITEMS_MAX = 500
PAGE_ITEMS_DEFAULT = 100
CURSOR_CHARACTERS_MAX = 1024
IDEMPOTENCY_KEY_CHARACTERS_MAX = 128


def _services(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


def _page_request(
    limit: Annotated[int, Query(ge=1, le=PAGE_ITEMS_MAX)] = PAGE_ITEMS_DEFAULT,
    cursor: Annotated[str | None, Query(max_length=CURSOR_CHARACTERS_MAX)] = None,
) -> PageRequest:
    return PageRequest(limit, cursor)


async def _idempotent_request(
    request: Request,
    caller: Caller,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> IdempotentRequest:
    digest = request_digest(request.method, request.url.path, await request.body())
    if idempotency_key is None:
        return IdempotentRequest(None, digest, caller.user)
    is_short = 0 < len(idempotency_key) <= IDEMPOTENCY_KEY_CHARACTERS_MAX
    if not is_short or not idempotency_key.isprintable():
        text = f"must be 1 to {IDEMPOTENCY_KEY_CHARACTERS_MAX} printable characters"
        raise invalid("Idempotency-Key", text)
    key = idempotency_row_key(caller.user, idempotency_key)
    return IdempotentRequest(key, digest, caller.user)


ServicesParameter = Annotated[Services, Depends(_services)]
"""The type of a handler's parameter that receives the services of the application."""

PageParameters = Annotated[PageRequest, Depends(_page_request)]
"""The requested page of a list, from the query parameters `limit` and `cursor`."""

IdempotencyParameter = Annotated[IdempotentRequest, Depends(_idempotent_request)]
"""A mutation: the Idempotency-Key, the digest of method, path and body, and the user.

The key is None for a request without the header. RequestError invalid for a key that is empty, too
long or not printable.
"""

ExperimentId = Annotated[int, Path(ge=1, le=10**12 - 1)]
"""The id of an experiment in a path."""

TrialId = Annotated[int, Path(ge=1, le=10**12 - 1)]
"""The id of a trial in a path."""
