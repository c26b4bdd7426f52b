"""A stepped cluster, and lines at the end of a run on how much its tests covered."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulator.stepped.stepped_cluster import SteppedCluster

PROPERTY = "covered"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SteppedCluster]:
    """A cluster with a pool."""
    made = SteppedCluster(tmp_path / "table.db")
    made.add_pool()
    yield made
    made.close()


@pytest.fixture
def coverage_line(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that notes a line for the end of the run."""
    return lambda line: request.node.user_properties.append((PROPERTY, line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [item for found in terminalreporter.stats.values() for item in found]
    lines = [
        str(line)
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, line in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section("simulation")
        for line in sorted(lines):
            terminalreporter.write_line(line)
