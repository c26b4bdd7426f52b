from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulators.docker_engine import DockerEngine, docker_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    with docker_engine() as started:
        yield started
