"""The container engine of a machine: Docker or Podman, run by root or by the agent's own user.

Podman's service answers Docker's API. Differences that the agent must know are fields of
`EngineFacts`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from detcloud.agent.docker.engine import DEFAULT_SOCKET, EngineClient

if TYPE_CHECKING:
    from collections.abc import Mapping

PODMAN = "podman"
VARIABLES = {"docker": "DOCKER_HOST", PODMAN: "CONTAINER_HOST"}
"""The variable that names the engine's socket, by the name of the runtime."""
START_TEXTS = {
    "docker": "start Docker",
    PODMAN: "start Podman's service, for example with `systemctl enable --now podman.socket`, "
    "and `--user` without root",
}
ROOTLESS_OPTION = "name=rootless"


class EngineUnusable(Exception):
    """The agent cannot run trials with the machine's engine. The message has a remedy."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The kind of an engine."""

    title: str
    """The engine for messages, for example `Podman 4.3.1`."""
    is_podman: bool
    is_rootless: bool
    """Whether the engine runs as the agent's user, without root's rights. Files of the root of a
    container then belong to the agent's user.
    """

    @property
    def user_namespace(self) -> str:
        """The mode of the user namespace, in which the agent's user keeps the number. "": default.

        Only Podman has this mode.
        """
        return "keep-id" if self.is_rootless and self.is_podman else ""

    def default_user(self, own: tuple[int, int], unprivileged: tuple[int, int]) -> tuple[int, int]:
        """Return the ids of the user that containers run as if nobody chooses another.

        Args:
            own: the ids of the agent's user.
            unprivileged: the ids for an agent that is root.
        """
        if self.is_rootless and not self.is_podman:
            # The root of a container is the agent's user on the machine.
            return 0, 0
        return own if own[0] else unprivileged


def engine_socket(runtime: str, environment: Mapping[str, str]) -> str:
    """Return the path of the engine's socket.

    The variable of the runtime decides. Otherwise return the first existing socket of the system
    and of the user, and the system's path if neither exists.

    Raises:
        ValueError: the variable names no unix socket. Containers of a remote engine would not see
            the machine's directories.
    """
    variable = VARIABLES[runtime]
    if host := environment.get(variable):
        if not host.startswith("unix:///"):
            raise ValueError(
                f"{variable} is {host!r}; the engine must be on this machine: unix:///PATH"
            )
        return host.removeprefix("unix://")
    places = [DEFAULT_SOCKET if runtime == "docker" else "/run/podman/podman.sock"]
    if folder := environment.get("XDG_RUNTIME_DIR"):
        places.append(f"{folder}/{'docker.sock' if runtime == 'docker' else 'podman/podman.sock'}")
    return next((place for place in places if os.access(place, os.W_OK)), places[0])


def read_facts(engine: EngineClient) -> EngineFacts:
    """Ask the engine for its kind.

    Raise EngineUnusable if the engine runs without root and the agent runs as root. Raise
    EngineUnavailable or EngineError if the engine does not answer.
    """
    version, information = engine.read_version(), engine.information()
    components = [str(part.get("Name")) for part in version.get("Components") or ()]
    is_podman = any(name.startswith("Podman") for name in components)
    is_rootless = information.get("Rootless") is True or ROOTLESS_OPTION in (
        information.get("SecurityOptions") or ()
    )
    title = f"{'Podman' if is_podman else 'Docker'} {version.get('Version', '?')}"
    if is_rootless and os.getuid() == 0:
        raise EngineUnusable(
            f"{title} runs without root's rights, and this agent runs as root; run the agent as "
            "the user of the engine, or name the socket of root's engine"
        )
    return EngineFacts(f"{title}, without root" if is_rootless else title, is_podman, is_rootless)
