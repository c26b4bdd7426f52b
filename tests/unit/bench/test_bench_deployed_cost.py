"""Counts of what a deployed cluster uses: a call, a commit or a read too many shows here."""

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


def test_a_life_of_ten_validations_keeps_to_its_budget() -> None:
    used = life()
    # Two to submit it and one for its code; three for each validation with its checkpoint, and
    # a few as it starts and ends.
    assert 33 <= used.requests <= 42
    assert used.write_units <= 930
    assert used.read_units <= 660
    assert used.invocations["advance"] <= 25
    # Its log is small, so that its rows hold it.
    assert used.puts == 0


def test_an_agent_that_has_nothing_to_say_renews_its_lease_and_no_more() -> None:
    used = steady_agent_usage(10)
    # One in 10 to 15 s.
    assert 40 <= used.requests <= 60
    assert set(used.invocations) == {"api"}
    assert used.write_units == used.requests
    # Its token, head, lease and session, and for the answer the trial's head and the experiment's.
    assert used.read_units == 6 * used.requests
    assert used.puts == 0


def test_a_machine_that_trains_keeps_to_its_share_of_the_bill() -> None:
    used = machine_hour_usage("g5.12xlarge", 1, machines=1)
    # As many as if its trial said nothing, but for what is urgent.
    assert used.requests <= 330
    assert used.puts == 0
    # 0.15 % of 40 % of 5.672 $.
    assert list_price_dollars(used) <= 0.0034


def test_a_machine_with_four_trials_keeps_to_its_share_of_the_bill() -> None:
    # The ticks are those of one machine: of a thousand each has next to none.
    used = machine_hour_usage("g5.12xlarge", 4, machines=1).without("tick")
    assert used.requests <= 330
    # 0.2 % of 40 % of 5.672 $.
    assert list_price_dollars(used) <= 0.00454
    # A hundred and a few rows of metrics and as many of logs for each trial, of two units each, and
    # the end of the former.
    assert used.write_units <= 5_500


def test_an_idle_cluster_does_nothing_but_tick() -> None:
    invocations, month, reads = idle_cost(QUICK)
    assert (invocations.value, invocations.verdict) == (1440, "met")
    assert month.verdict == "met"
    # docs/aws.md says 29.5.
    assert reads.value is not None
    assert reads.value <= 29.5


def test_a_request_costs_what_aws_asks_for() -> None:
    used = steady_agent_usage(5)
    # 1,024 MB for 0.02 s and 5 calls of 0.005 s; 1,030 bytes of logs; a lease and 6 reads.
    each = prices.API_REQUEST + prices.INVOCATION + 0.045 * prices.GB_SECOND
    each += 1030 * prices.LOG_GB / 1e9 + prices.WRITE_UNIT + 6 * prices.READ_UNIT
    assert list_price_dollars(used) == pytest.approx(used.requests * each)
