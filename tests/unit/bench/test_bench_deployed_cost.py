"""Usage of a deployed cluster on AWS: requests, invocations, writes and reads."""

import pytest

from tests.conftest import require

require("mangum")
require("pulumi_aws")

from bench.deployed_cost import (  # noqa: E402
    idle_cost,
    life,
    list_price_dollars,
    machine_hour_usage,
    steady_agent_usage,
)
from bench.figures import QUICK  # noqa: E402
from infra.aws import prices  # noqa: E402


def test_trial_with_ten_validations_stays_within_usage_limits() -> None:
    used = life()
    # Two to submit the trial and one for the code. Three for each validation with a checkpoint,
    # and a few at the start and end.
    assert 33 <= used.requests <= 42
    assert used.write_units <= 900
    assert used.read_units <= 660
    assert used.invocations["advance"] <= 25
    # The log is small enough for rows.
    assert used.puts == 0


def test_steady_agent_sends_only_lease_renewals() -> None:
    used = steady_agent_usage(10)
    # A renewal every 10 to 15 s.
    assert 40 <= used.requests <= 60
    assert set(used.invocations) == {"api"}
    assert used.write_units == used.requests
    # The agent's token, head, lease and session, and the heads of the trial and experiment for the
    # answer. Once a minute, the API also reads the fleet with the age of the tick.
    assert 0 <= used.read_units - 6 * used.requests <= 10
    assert used.puts == 0


def test_control_plane_of_a_training_machine_is_within_the_cost_limit() -> None:
    used = machine_hour_usage("g5.12xlarge", 1, machines=1)
    # As many as for a silent trial, and the urgent reports.
    assert used.requests <= 330
    assert used.puts == 0
    # 0.15 % of the spot price, 40 % of $5.672.
    assert list_price_dollars(used) <= 0.0034


@pytest.mark.nightly
def test_control_plane_of_four_trials_on_a_machine_is_within_the_cost_limit() -> None:
    # A single machine would bear all ticks. With a thousand machines, the share is negligible.
    used = machine_hour_usage("g5.12xlarge", 4, machines=1).without("tick")
    assert used.requests <= 330
    # 0.2 % of the spot price, 40 % of $5.672.
    assert list_price_dollars(used) <= 0.00454
    # About 105 rows of metrics and as many of logs for each trial, of two units each, and the
    # deletion of the metric rows.
    assert used.write_units <= 5_500


def test_idle_cluster_invokes_only_the_tick() -> None:
    invocations, month, reads = idle_cost(QUICK)
    assert (invocations.value, invocations.verdict) == (1440, "met")
    assert month.verdict == "met"
    # The value in docs/aws.md.
    assert reads.value is not None
    assert reads.value <= 31.1


def test_request_cost_matches_list_prices() -> None:
    used = steady_agent_usage(5)
    # 1,024 MB for 0.02 s and 5 calls of 0.005 s, 1,030 bytes of logs, a written lease, 6 reads.
    request_dollars = prices.API_REQUEST + prices.INVOCATION + 0.045 * prices.GB_SECOND
    request_dollars += 1030 * prices.LOG_GB / 1e9 + prices.WRITE_UNIT + 6 * prices.READ_UNIT
    # A read of the fleet is a call of 0.005 s more.
    fleet_reads = used.read_units - 6 * used.requests
    fleet_dollars = fleet_reads * (0.005 * prices.GB_SECOND + prices.READ_UNIT)
    expected = used.requests * request_dollars + fleet_dollars
    assert list_price_dollars(used) == pytest.approx(expected)
