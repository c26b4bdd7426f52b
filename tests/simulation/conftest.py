"""A stepped cluster, and coverage lines in the summary of a test run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simulator.stepped.stepped_cluster import SteppedCluster

PROPERTY = "covered"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SteppedCluster]:
    """Yield a cluster with a pool and close the cluster afterwards."""
    made = SteppedCluster(tmp_path / "table.db")
    made.add_pool()
    yield made
    made.close()


@pytest.fixture
def coverage_line(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Return a function that adds a line to the summary of the run."""
    return lambda line: request.node.user_properties.append((PROPERTY, line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the coverage lines of all tests. Called by pytest at the end of a run."""
    reports = [item for group in terminalreporter.stats.values() for item in group]
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
