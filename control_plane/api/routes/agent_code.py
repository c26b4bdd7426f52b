"""The agent's code, for instances that boot."""

from typing import Annotated

from fastapi import Path, Response

from control_plane.api.agent_code import agent_code
from control_plane.api.errors import ApiError, Code
from control_plane.api.guarded import guarded_router, open_to_all

router = guarded_router("agents")

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


@router.get("/agent-code/{sha256}", response_class=Response)
@open_to_all
def download(sha256: Digest) -> Response:
    """The code is no secret, and whoever asks for it can prove nothing yet."""
    found = agent_code()
    if sha256 != found.sha256:
        raise ApiError(Code.NOT_FOUND, "there is no such code here; the cluster was deployed anew")
    # Its name is its content.
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}
    return Response(found.content, media_type="application/gzip", headers=headers)
