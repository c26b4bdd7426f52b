"""A container runtime and trial specifications for the engine that the tests start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcloud.agent.docker.container import ContainerRules
from detcloud.agent.docker.engine import EngineClient
from detcloud.agent.docker.image_cache import ImageCache
from detcloud.agent.docker.runtime import DockerRuntime
from tests.emulators.docker_engine import IMAGE, DockerEngine, machine_mounts

USER = 1000


def docker_runtime(
    engine: EngineClient | DockerEngine,
    work: Path,
    log: list[str] | None = None,
    images: Mapping[str, Any] | None = None,
    **rules: Any,
) -> DockerRuntime:
    """Return a runtime for an unprivileged user, unless `rules` name a user.

    `images` are options of the cache of images.
    """
    api = engine.api if isinstance(engine, DockerEngine) else engine
    log_line = (log if log is not None else []).append
    all_rules = ContainerRules(work, "node", **{"user": USER, "group": USER, **rules})
    cache = ImageCache(api, work / "images.json", log_line, **(images or {}))
    return DockerRuntime(api, all_rules, log_line, cache)


def container_spec(image: str = IMAGE, **config: Any) -> dict[str, Any]:
    """Return the specification of a trial in a container with this machine's Python mounted."""
    mounts = [*machine_mounts(), *config.pop("bind_mounts", ())]
    return {"image": {"cpu": image}, "config": {"bind_mounts": mounts, **config}}
