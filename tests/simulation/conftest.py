"""Says at the end of a run how much was covered."""

from collections.abc import Callable

import pytest

COVERED = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def covered(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Notes a line for the end of the run."""
    return request.config.stash.setdefault(COVERED, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(COVERED, [])
    if lines:
        terminalreporter.section("simulation")
        for line in lines:
            terminalreporter.write_line(line)
