"""The route of the agent's code, for instances that boot."""

from typing import Annotated

from fastapi import Path, Response

from control_plane.agents.agent_code import read_agent_code
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.route_guards import allow_anyone, guarded_router
from control_plane.errors import Code, RequestError

router = guarded_router("agents")

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


@router.get("/agent-code/{sha256}", response_class=Response)
@allow_anyone
def download(sha256: Digest, services: ServicesParameter) -> Response:
    """Download the code. It is no secret, and an instance that boots can prove nothing yet."""
    code = read_agent_code(services.objects, sha256)
    if code is None:
        raise RequestError(Code.NOT_FOUND, "no version of this cluster had such code")
    # The digest in its path names this content for ever.
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(code, media_type="application/gzip", headers=headers)
