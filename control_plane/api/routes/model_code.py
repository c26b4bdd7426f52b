"""Routes of model code: offered by its digest, uploaded once through a signed request."""

from typing import Annotated

from fastapi import Path, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from control_plane.access.principals import USER_ROLES, Role
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import download_or_redirect
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.errors import Code, RequestError
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.objects.store import MODEL_CODE_NAMESPACE, SHA256_PATTERN, model_code_key
from control_plane.queries import agent as agents
from control_plane.queries.answer import Answer

# An archive of 95 MiB that do not compress at all, with the headers of a hundred thousand files.
ARCHIVE_BYTES_MAX = 120 * 1024 * 1024

router = guarded_router(MODEL_CODE_NAMESPACE)


class OfferBody(RequestBody):
    """An archive that the caller has: its digest and its size in bytes."""

    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]
    size: Annotated[int, Field(ge=1)]


class Upload(Answer):
    """The request that uploads the archive, to be sent as it is; `path` is a whole URL where the
    archive goes to another host.
    """

    method: str
    path: str
    headers: dict[str, str]
    expires_ms: int


class OfferAnswer(Answer):
    """The answer to an offer: whether the archive is needed, and then how to upload it."""

    needed: bool
    upload: Upload | None = None


@router.post("/model-code")
@require_role(*USER_ROLES)
def offer_model_code(offer: OfferBody, services: ServicesParameter) -> OfferAnswer:
    if offer.size > ARCHIVE_BYTES_MAX:
        raise RequestError(
            Code.TOO_LARGE,
            f"the archive has {offer.size} bytes, the limit is {ARCHIVE_BYTES_MAX}; "
            "exclude data and outputs with a .detignore file",
        )
    key = model_code_key(offer.sha256)
    if services.objects.size(key) is not None:
        return OfferAnswer(needed=False)
    signed = services.objects.signed_url(
        "PUT",
        key,
        size=offer.size,
        sha256=offer.sha256,
        expires_ms=services.now_ms() + VALIDITY_MS_MAX,
    )
    upload = Upload(
        method=signed.method,
        path=signed.url,
        headers=dict(signed.headers),
        expires_ms=signed.expires_ms,
    )
    return OfferAnswer(needed=True, upload=upload)


@router.get("/model-code/{sha256}", response_class=StreamingResponse)
@require_role(*USER_ROLES, Role.AGENT)
def get_model_code(
    sha256: Annotated[str, Path(pattern=SHA256_PATTERN)],
    caller: Caller,
    services: ServicesParameter,
) -> Response:
    """Download the archive, directly or by a redirect. An agent learns a digest only from an
    allocation of its own, and one that was declared lost gets nothing.
    """
    agent = agents.find_agent(services, caller.subject) if caller.role is Role.AGENT else None
    if agent is not None and agent.lost:
        raise RequestError(
            Code.CONFLICT, f"the session of agent {agent.agent} is over; enrol again"
        )
    key = model_code_key(sha256)
    return download_or_redirect(services.objects, key, "application/gzip", services.now_ms())
