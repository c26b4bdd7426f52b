"""Lines at the end of a run on how much its tests covered, wherever they ran."""

from collections.abc import Callable

import pytest

PROPERTY = "covered"


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
