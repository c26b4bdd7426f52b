"""The groups of figures of a deployed cluster. What they need is imported as they begin: it takes
packages that the others can do without.
"""

from collections.abc import Iterator

from bench.figures import Figure, Row, Scale


def latency(scale: Scale) -> Iterator[Row]:
    """See bench/deployed_latency.py."""
    from bench.deployed_latency import latency

    yield from latency(scale)


def cold_starts(scale: Scale) -> Iterator[Row]:
    """See bench/cold_starts.py."""
    from bench.cold_starts import cold_starts

    yield from cold_starts(scale)


def costs(scale: Scale) -> Iterator[Row]:
    """See bench/deployed_cost.py."""
    from bench.deployed_cost import costs

    yield from costs(scale)


def idle(scale: Scale) -> Iterator[Row]:
    """See bench/deployed_cost.py."""
    from bench.deployed_cost import idle

    yield from idle(scale)


def many_agents(scale: Scale) -> Iterator[Row]:
    """See bench/many_agents.py."""
    from bench.many_agents import many_agents

    yield from many_agents(scale)


DEPLOYED: dict[str, Figure] = {
    "latency": latency,
    "cold-starts": cold_starts,
    "costs": costs,
    "idle": idle,
    "agents": many_agents,
}
