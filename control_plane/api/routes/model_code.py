"""Routes of model code: offer an archive by digest, upload the archive once, and download it."""

from typing import Annotated

from anyio import to_thread
from fastapi import Path as PathParameter
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from control_plane.access.principals import USER_ROLES, Role
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.owned_objects import only_own
from control_plane.api.received_files import received_body
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import download_or_redirect
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.api.stored_objects import archive_checks, check_and_store
from control_plane.errors import Code, RequestError, invalid
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.objects.store import MODEL_CODE_NAMESPACE, SHA256_PATTERN, model_code_key
from control_plane.queries import agent as agents
from control_plane.queries.answer import Answer

# The size of an archive with 95 MiB of incompressible content and the headers of 100,000 files.
ARCHIVE_BYTES_MAX = 120 * 1024 * 1024

# Functions receive bodies in base64. A body of this size then fits into the 6 MB of a call.
SENT_BYTES_MAX = 4 * 1024 * 1024

Sha256 = Annotated[str, PathParameter(pattern=SHA256_PATTERN)]

router = guarded_router(MODEL_CODE_NAMESPACE)


class OfferBody(RequestBody):
    """An archive that the caller offers: the digest, and the size in bytes."""

    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]
    size: Annotated[int, Field(ge=1)]


class Upload(Answer):
    """The request that uploads an archive. Send the request unchanged before `expires_ms`.

    `path` is a path of this API, or a whole URL of another host. `expires_ms` is in epoch ms.
    """

    method: str
    path: str
    headers: dict[str, str]
    expires_ms: int


class OfferAnswer(Answer):
    """The answer to an offer. `upload` is the request that uploads a needed archive, else null."""

    needed: bool
    upload: Upload | None = None


@router.post("/model-code")
@require_role(*USER_ROLES, changes=only_own)
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


@router.put("/model-code/{sha256}", status_code=204)
@require_role(*USER_ROLES, body_bytes_max=SENT_BYTES_MAX, changes=only_own)
async def put_model_code(
    sha256: Sha256, request: Request, caller: Caller, services: ServicesParameter
) -> Response:
    """Store the archive of model code in the body, which has at most 4 MiB.

    The route serves callers that cannot send the archive to a bucket, such as the web page. Sending
    the archive again is not an error. Errors: `invalid` if the body has another digest than the
    path, or if the archive breaks a rule. `too_large` for a larger body.
    """
    async with received_body(request) as (path, digest):
        if digest != sha256:
            raise invalid("", "the body's SHA-256 differs from the one in the path; send it again")
        await to_thread.run_sync(
            check_and_store,
            path,
            model_code_key(sha256),
            sha256,
            services.objects,
            limiter=archive_checks.limiter(),
        )
    return Response(status_code=204)


@router.get("/model-code/{sha256}", response_class=StreamingResponse)
@require_role(*USER_ROLES, Role.AGENT)
def get_model_code(
    sha256: Sha256,
    caller: Caller,
    services: ServicesParameter,
) -> Response:
    """Download an archive of model code, directly or by a redirect to the store.

    An agent may download any archive whose digest the agent has. Errors: `not_found` if no archive
    has the digest. `conflict` for an agent that was declared lost and must enrol again.
    """
    agent = agents.find_agent(services, caller.subject) if caller.role is Role.AGENT else None
    if caller.role is Role.AGENT and not caller.subject:
        # The stand-in for a role of a newer release (access/principals.py).
        raise RequestError(Code.FORBIDDEN, "only agents and users download model code")
    if agent is not None and agent.lost:
        raise RequestError(
            Code.CONFLICT, f"the session of agent {agent.agent} is over; enrol again"
        )
    key = model_code_key(sha256)
    return download_or_redirect(services.objects, key, "application/gzip", services.now_ms())
