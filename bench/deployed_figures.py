"""The groups of figures of a deployed cluster.

Each group imports its packages at the start, since the groups need packages that other groups do
not.
"""

from collections.abc import Iterator

from bench.figures import Figure, Row, Scale


def latency(scale: Scale) -> Iterator[Row]:
    """Latencies of a deployed cluster."""
    from bench.deployed_latency import latency

    yield from latency(scale)


def gcp_latency(scale: Scale) -> Iterator[Row]:
    """Latencies of a cluster deployed to Google Cloud."""
    from bench.gcp_latency import gcp_latency

    yield from gcp_latency(scale)


def webhook_latency(scale: Scale) -> Iterator[Row]:
    """Times from a change to the receipt of the webhook."""
    from bench.deployed_webhooks import webhook_latency

    yield from webhook_latency(scale)


def cold_starts(scale: Scale) -> Iterator[Row]:
    """Start-up times of the functions."""
    from bench.cold_starts import cold_starts

    yield from cold_starts(scale)


def gcp_cold_starts(scale: Scale) -> Iterator[Row]:
    """Start-up times of the functions on Google Cloud."""
    from bench.gcp_cold_starts import gcp_cold_starts

    yield from gcp_cold_starts(scale)


def costs(scale: Scale) -> Iterator[Row]:
    """Costs of a deployed cluster at work."""
    from bench.deployed_cost import costs

    yield from costs(scale)


def gcp_costs(scale: Scale) -> Iterator[Row]:
    """Costs of a cluster deployed to Google Cloud."""
    from bench.gcp_cost import gcp_costs

    yield from gcp_costs(scale)


def idle_cost(scale: Scale) -> Iterator[Row]:
    """Cost of a deployed cluster without work."""
    from bench.deployed_cost import idle_cost

    yield from idle_cost(scale)


def many_agents(scale: Scale) -> Iterator[Row]:
    """Call times of many agents at once."""
    from bench.many_agents import many_agents

    yield from many_agents(scale)


def outage(scale: Scale) -> Iterator[Row]:
    """Cost of an outage of the API alone."""
    from bench.worlds import api_outage

    yield from api_outage(scale)


DEPLOYED: dict[str, Figure] = {
    "latency": latency,
    "gcp-latency": gcp_latency,
    "webhook-latency": webhook_latency,
    "cold-starts": cold_starts,
    "gcp-cold-starts": gcp_cold_starts,
    "costs": costs,
    "idle": idle_cost,
    "gcp-costs": gcp_costs,
    "agents": many_agents,
    "outage": outage,
}
