"""Model code, content-addressed: asked for by digest, uploaded once through a signed request."""

from typing import Annotated

from fastapi import Path, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from control_plane.api.archives import MODEL_CODE, SHA256, model_code_key
from control_plane.api.auth import Role
from control_plane.api.bodies import Body, RequestBody
from control_plane.api.errors import ApiError, Code
from control_plane.api.guarded import PEOPLE, Caller, guarded_router, needs
from control_plane.api.services import Given
from control_plane.api.signing import LIFE_MS_MAX
from control_plane.api.stored import given_out
from control_plane.api.views import agent as agents

# 95 MiB of file bytes that do not compress at all, with the headers of a hundred thousand files.
ARCHIVE_BYTES_MAX = 120 * 1024 * 1024

router = guarded_router(MODEL_CODE)


class Offer(RequestBody):
    """An archive that the caller has: its digest and its size in bytes."""

    sha256: Annotated[str, Field(pattern=SHA256)]
    size: Annotated[int, Field(ge=1)]


class Upload(Body):
    """The request that uploads the archive, to be sent as it is; `path` is a whole URL where the
    archive goes to another host.
    """

    method: str
    path: str
    headers: dict[str, str]
    expires_ms: int


class Answer(Body):
    needed: bool
    upload: Upload | None = None


@router.post("/model-code")
@needs(*PEOPLE)
def offer_model_code(offer: Offer, services: Given) -> Answer:
    if offer.size > ARCHIVE_BYTES_MAX:
        raise ApiError(
            Code.TOO_LARGE,
            f"the archive has {offer.size} bytes, the limit is {ARCHIVE_BYTES_MAX}; "
            "leave data and outputs out with a .detignore file",
        )
    key = model_code_key(offer.sha256)
    if services.objects.size(key) is not None:
        return Answer(needed=False)
    signed = services.objects.signed_url(
        "PUT",
        key,
        size=offer.size,
        sha256=offer.sha256,
        expires_ms=services.now_ms() + LIFE_MS_MAX,
    )
    upload = Upload(
        method=signed.method,
        path=signed.url,
        headers=dict(signed.headers),
        expires_ms=signed.expires_ms,
    )
    return Answer(needed=True, upload=upload)


@router.get("/model-code/{sha256}", response_class=StreamingResponse)
@needs(*PEOPLE, Role.AGENT)
def get_model_code(
    sha256: Annotated[str, Path(pattern=SHA256)], caller: Caller, services: Given
) -> Response:
    """The archive, or a redirect to it. An agent learns a digest only from an allocation it was
    given, and one that was given up gets nothing.
    """
    agent = agents.found(services, caller.subject) if caller.role is Role.AGENT else None
    if agent is not None and agent.lost:
        raise ApiError(Code.CONFLICT, f"the session of agent {agent.agent} is over; enrol again")
    key = model_code_key(sha256)
    return given_out(services.objects, key, "application/gzip", services.now_ms())
