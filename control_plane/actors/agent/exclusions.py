"""Exclusions: a machine that takes no new work for a limited time.

A log policy or a failed check of a gang excludes a machine. The exclusion ends at a fixed time, or
when an administrator enables the agent. Allocations on an excluded machine may finish.
"""

from collections.abc import Sequence
from dataclasses import dataclass

EXCLUSIONS_MAX = 8
"""The most exclusions of an agent. A further exclusion replaces the exclusion that ends first."""
REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A reason why the machine takes no new work until a time."""

    reason: str
    """The text for users."""
    since_ms: int
    """The time of the exclusion, in epoch ms."""
    until_ms: int
    """The end of the exclusion, in epoch ms."""


def add_exclusion(before: Sequence[Exclusion], added: Exclusion) -> tuple[Exclusion, ...]:
    """Return the exclusions with another exclusion.

    An exclusion for the same reason keeps its beginning and gets the later end.
    """
    others = [x for x in before if x.reason != added.reason]
    for known in before:
        if known.reason == added.reason:
            until_ms = max(known.until_ms, added.until_ms)
            added = Exclusion(known.reason, known.since_ms, until_ms)
    if len(others) >= EXCLUSIONS_MAX:
        others.remove(min(others, key=lambda x: x.until_ms))
    return (*others, added)


def present_exclusions(exclusions: Sequence[Exclusion], now_ms: int) -> tuple[Exclusion, ...]:
    """Return the exclusions that end after `now_ms`."""
    return tuple(x for x in exclusions if x.until_ms > now_ms)
