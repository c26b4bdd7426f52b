"""`detcloud cost`, cost limits of experiments, and amounts of dollars on the command line."""

import json
import re
from argparse import ArgumentTypeError

import pytest

from detcloud.cli.commands.cost import BY
from detcloud.cli.framework.argument_types import parse_dollars
from detcloud.cli.rendering.quantities import dollars_text
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

TOTAL = "2026-11-01 to 2026-11-30: allocations $12.47, instances $20.25, of which idle $7.78"


# For each value of --by: the titles, the first row and the last row of the table.
TABLES = {
    "experiment": ("Experiment,Name,Cost", "2,digits,$12.40", "1,N/A,$0.0712"),
    "trial": ("Trial,Experiment,Cost", "5,experiment 2,$12.40", "1,experiment 1,$0.0712"),
    "user": ("User,Cost", "ada,$12.40", "unknown,$0.0712"),
    "pool": (
        "Pool,Instances,Allocations,Idle",
        "cloud,$20.00,$12.47,$7.53",
        "spot,$0.2500,$0.00,$0.2500",
    ),
    "day": (
        "Day,Instances,Allocations,Idle",
        "2026-11-29,$20.00,$12.40,$7.60",
        "2026-11-30,$0.2500,$0.0712,$0.1788",
    ),
}


@pytest.mark.parametrize("by", BY)
def test_costs_are_a_table_with_the_total_below(
    fake: FakeCluster, detcloud: Detcloud, by: str
) -> None:
    titles, rule, *rows, total = detcloud("cost", "--by", by).out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in (titles, *rows)]
    assert [",".join(row) for row in cells] == [*TABLES[by]]
    assert set(rule) == {"-", "+"}
    assert total == TOTAL


@pytest.mark.parametrize("by", BY)
def test_a_csv_has_no_total(fake: FakeCluster, detcloud: Detcloud, by: str) -> None:
    assert detcloud("cost", "--by", by, "--csv").out.splitlines() == [*TABLES[by]]


def test_costs_are_listed_by_experiment_by_default(fake: FakeCluster, detcloud: Detcloud) -> None:
    assert detcloud("cost") == detcloud("cost", "--by", "experiment")
    assert detcloud("cost", "--by", "week").code == 2


def test_json_and_yaml_are_the_clusters_answer(fake: FakeCluster, detcloud: Detcloud) -> None:
    report = json.loads(detcloud("cost", "--by", "user", "--json").out)
    assert report.keys() == {"by", "since", "until", "items", "total"}
    assert [item["instance_cost"] for item in report["items"]] == [None, None]
    assert (report["total"]["cost"], report["total"]["idle_cost"]) == (12.4712, 20.25 - 12.4712)
    assert "instance_cost: 20.25\n" in detcloud("cost", "--yaml").out


@pytest.mark.parametrize(
    ("words", "span"),
    [
        (["--since", "2026-11-10"], "2026-11-10 to 2026-11-30:"),
        (["--until", "2026-11-10"], "2026-11-01 to 2026-11-10:"),
        (["--since", "20261109", "--until", "2026-11-10"], "2026-11-09 to 2026-11-10:"),
    ],
)
def test_since_and_until_set_the_span_of_days(
    fake: FakeCluster, detcloud: Detcloud, words: list[str], span: str
) -> None:
    assert detcloud("cost", *words).out.splitlines()[-1].startswith(span)


@pytest.mark.parametrize("word", ["--since", "--until"])
@pytest.mark.parametrize("day", ["monday", "2026-11-31", "", "2026-11-30T08:00"])
def test_malformed_day_is_refused_before_any_request(
    fake: FakeCluster, detcloud: Detcloud, word: str, day: str
) -> None:
    ended = detcloud("cost", word, day)
    assert ended.code == 2
    assert f"{day!r} is not a day; expected a form such as 2026-11-30" in ended.err
    assert fake.requests == []


def test_the_cluster_refuses_days_in_the_wrong_order(fake: FakeCluster, detcloud: Detcloud) -> None:
    ended = detcloud("cost", "--since", "2026-11-10", "--until", "2026-11-09")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("error: since: must be at most 365 days before until (2026-11-09)")


def test_cost_limit_of_an_experiment_is_set_and_lifted(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fake.add_experiment({}, {"paused": True})
    fake.experiments[0]["cost"] = 0.0712
    limited = detcloud("e", "set", "max-cost", "1", "$30")
    assert limited.out == "experiment 1 may cost at most $30.00\n"
    assert fake.experiments[0]["max_cost"] == 30.0
    assert "$0.0712 of $30.00" in detcloud("describe", "1").out
    fake.experiments[0]["cost"] = None
    assert "N/A of $30.00" in detcloud("describe", "1").out
    lifted = detcloud("e", "set", "max-cost", "1", "none")
    assert lifted.out == "experiment 1 may cost as much as it needs\n"
    assert fake.experiments[0]["max_cost"] is None
    assert re.search(r"^Cost +N/A$", detcloud("describe", "1").out, re.MULTILINE)
    assert detcloud("e", "set", "max-cost", "1", "0").code == 2


def test_a_pool_is_described_with_its_budget(fake: FakeCluster, detcloud: Detcloud) -> None:
    costs = [
        line
        for line in detcloud("rp", "describe", "gpus").out.splitlines()
        if line.startswith("Cost this month")
    ]
    assert costs == ["Cost this month   $12.50 of $500.00, of which idle $0.2500"]


@pytest.mark.parametrize(
    ("dollars", "text"),
    [
        (None, None),
        (0.0, "$0.00"),
        (0.0712, "$0.0712"),
        (0.99994, "$0.9999"),
        (1.0, "$1.00"),
        (12.4, "$12.40"),
        (1_234_567.891, "$1234567.89"),
    ],
)
def test_amounts_below_a_dollar_have_four_digits(dollars: float | None, text: str | None) -> None:
    assert dollars_text(dollars) == text


@pytest.mark.parametrize(("text", "dollars"), [("12.50", 12.5), ("$12", 12.0), ("1e-3", 0.001)])
def test_amounts_are_parsed_as_dollars(text: str, dollars: float) -> None:
    assert parse_dollars(text) == dollars


@pytest.mark.parametrize("text", ["", "$", "$$1", "x", "0", "-1", "$-1", "nan", "inf", "1e999"])
def test_malformed_amount_is_refused(text: str) -> None:
    with pytest.raises(
        ArgumentTypeError, match=r"is not an amount; expected dollars such as 12\.50"
    ):
        parse_dollars(text)
