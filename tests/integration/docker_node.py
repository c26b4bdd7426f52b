"""What a node needs to run its trials in containers of an engine of the tests' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detcloud.agent.container import ContainerRules
from detcloud.agent.docker_api import Engine
from detcloud.agent.docker_runtime import DockerRuntime
from tests.emulators.docker_engine import IMAGE, DockerEngine, machine_mounts

USER = 1000


def docker_runtime(
    engine: DockerEngine | Engine, work: Path, said: list[str] | None = None, **rules: Any
) -> DockerRuntime:
    """Containers run as a user who is nobody here, unless `rules` name another."""
    api = engine.api if isinstance(engine, DockerEngine) else engine
    say = (said if said is not None else []).append
    all_rules = ContainerRules(work, "node", **{"user": USER, "group": USER, **rules})
    return DockerRuntime(api, all_rules, say)


def container_spec(image: str = IMAGE, **config: Any) -> dict[str, Any]:
    """What a spec says for a trial in a container that sees this machine's Python."""
    mounts = [*machine_mounts(), *config.pop("bind_mounts", ())]
    return {"image": {"cpu": image}, "config": {"bind_mounts": mounts, **config}}
