"""Prints the number and median length of functions below the results of tests."""

import pytest

from tests.unit.house.rules import function_lengths, sources


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    count, median = function_lengths(sources())
    terminalreporter.write_line(f"{count} functions in the product, median {median:g} lines")
