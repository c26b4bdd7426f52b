"""A runtime and specifications for trials in containers of the tests' own engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detcloud.agent.docker.container import ContainerRules
from detcloud.agent.docker.engine import EngineClient
from detcloud.agent.docker.runtime import DockerRuntime
from tests.emulators.docker_engine import IMAGE, DockerEngine, machine_mounts

USER = 1000


def docker_runtime(
    engine: EngineClient | DockerEngine, work: Path, log: list[str] | None = None, **rules: Any
) -> DockerRuntime:
    """Containers run as a user who is nobody here, unless `rules` name another."""
    api = engine.api if isinstance(engine, DockerEngine) else engine
    log_line = (log if log is not None else []).append
    all_rules = ContainerRules(work, "node", **{"user": USER, "group": USER, **rules})
    return DockerRuntime(api, all_rules, log_line)


def container_spec(image: str = IMAGE, **config: Any) -> dict[str, Any]:
    """The specification of a trial in a container that sees this machine's Python."""
    mounts = [*machine_mounts(), *config.pop("bind_mounts", ())]
    return {"image": {"cpu": image}, "config": {"bind_mounts": mounts, **config}}
