"""Routes from which machines outside the clouds get the agent: the installer and the code."""

from functools import cache
from importlib import resources
from typing import Annotated

from fastapi import Path, Response

from control_plane.access.principals import Role
from control_plane.agents.agent_code import agent_code, agent_code_key, keep_agent_code
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.responses import download_or_redirect
from control_plane.api.route_guards import allow_anyone, guarded_router, require_role
from control_plane.objects.store import SHA256_PATTERN
from control_plane.queries.answer import Answer
from control_plane.services import Services
from detcloud.shared.version import __version__

router = guarded_router("agents")

Digest = Annotated[str, Path(pattern=SHA256_PATTERN)]
_CALLERS = (Role.ADMIN, Role.USER, Role.JOIN, Role.AGENT)


class AgentCodeAnswer(Answer):
    """The code that agents of this cluster should run. `size` is the bytes of the archive."""

    version: str
    sha256: str
    size: int


SHELL_SCRIPT = "text/x-shellscript"


# The media type of the class would become the media type of error answers, which are JSON.
@router.get(
    "/agent-installer",
    response_class=Response,
    responses={200: {"content": {SHELL_SCRIPT: {"schema": {"type": "string"}}}}},
)
@allow_anyone
def get_installer() -> Response:
    """Return the shell script that installs an agent. The script contains no secret."""
    return Response(installer_script(), media_type=SHELL_SCRIPT)


@router.get("/agent-code")
@require_role(*_CALLERS)
def describe_code() -> AgentCodeAnswer:
    """Return the version, the digest and the size of the agent's code in this cluster."""
    code = agent_code()
    return AgentCodeAnswer(version=__version__, sha256=code.sha256, size=len(code.content))


@router.get("/agent-code/{sha256}")
@require_role(*_CALLERS)
def get_code(sha256: Digest, services: ServicesParameter) -> Response:
    """Send the archive of the agent's code, or redirect to the object store.

    Error: `not_found` for a digest that this cluster never had.
    """
    _keep_own_code(services, sha256)
    key = agent_code_key(sha256)
    return download_or_redirect(services.objects, key, "application/gzip", services.now_ms())


def _keep_own_code(services: Services, sha256: str) -> None:
    """Write this cluster's archive to the object store if the archive has this digest."""
    if sha256 == agent_code().sha256:
        keep_agent_code(services.objects)


@cache
def installer_script() -> str:
    """Return the installer's script together with the module for requests to the cluster."""
    folder = resources.files("detcloud.agent.machine")
    script = folder.joinpath("install.sh").read_text(encoding="utf-8")
    module = folder.joinpath("server_access.py").read_text(encoding="utf-8")
    return script.replace("# SERVER_ACCESS\n", module)
