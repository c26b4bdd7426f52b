"""Prints the number and median length of functions below the results of tests."""

import statistics

import pytest

from tests.unit.house.tree_report import read_tree


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lengths = read_tree().lengths
    median = statistics.median(lengths)
    terminalreporter.write_line(f"{len(lengths)} functions in the product, median {median:g} lines")
