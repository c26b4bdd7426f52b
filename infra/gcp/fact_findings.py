"""Findings of facts that may be unknown."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from infra.findings import Finding, Level
from infra.gcp.account_facts import Unknown

T = TypeVar("T")


def read_fact(
    fact: T | Unknown, subject: str, look: Callable[[T], Iterator[Finding]]
) -> Iterator[Finding]:
    """Yield what there is to say of a fact, or that it could not be read."""
    if isinstance(fact, Unknown):
        text = f"could not be checked: {fact.why}"
        yield Finding(Level.WARNING, subject, text, f"the check needs {fact.needs}")
    else:
        yield from look(fact)


def fine_finding(subject: str, text: str) -> Finding:
    """The finding that nothing is wrong."""
    return Finding(Level.FINE, subject, text)
