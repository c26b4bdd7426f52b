"""`detcloud usage`, and the use that descriptions show."""

import json

import pytest

from detcloud.cli.commands.usage import BY
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

TOTAL = (
    "2026-11-01 to 2026-11-30: 24.9 slot hours, mean use 41.5 %; paid $20.25, of which wasted "
    "$10.90: idle $7.78, low use $3.12"
)
SHARED = "Slot hours,Use,Memory,Cost,Paid,Idle,Low use,Wasted"
OWN = "Slot hours,Use,Memory,Cost,Low use,Wasted"
# For each value of --by: the titles, and the first row of the table.
TABLES = {
    "experiment": (f"Experiment,Name,{OWN}", "2,digits,24.8,41.5 %,60.0 %,$12.40,$3.10,$3.10"),
    "trial": (f"Trial,Experiment,{OWN}", "5,experiment 2,24.8,41.5 %,60.0 %,$12.40,$3.10,$3.10"),
    "user": (f"User,{OWN}", "ada,24.8,41.5 %,60.0 %,$12.40,$3.10,$3.10"),
    "project": (f"Project,Workspace,{OWN}", "vision,ada,24.8,41.5 %,60.0 %,$12.40,$3.10,$3.10"),
    "workspace": (f"Workspace,{OWN}", "ada,24.8,41.5 %,60.0 %,$12.40,$3.10,$3.10"),
    "pool": (f"Pool,{SHARED}", "cloud,24.9,41.5 %,60.0 %,$12.47,$20.00,$7.53,$3.12,$10.65"),
    "day": (f"Day,{SHARED}", "2026-11-29,24.8,41.5 %,60.0 %,$12.40,$20.00,$7.60,$3.10,$10.70"),
    "pool-day": (
        f"Day,Pool,{SHARED}",
        "2026-11-29,cloud,24.8,41.5 %,60.0 %,$12.40,$20.00,$7.60,$3.10,$10.70",
    ),
}


@pytest.mark.parametrize("by", BY)
def test_use_is_a_table(fake: FakeCluster, detcloud: Detcloud, by: str) -> None:
    titles, first, *_ = detcloud("usage", "--by", by, "--csv").out.splitlines()
    assert (titles, first) == TABLES[by]


def test_text_ends_with_the_total(fake: FakeCluster, detcloud: Detcloud) -> None:
    *_, last, total = detcloud("usage").out.splitlines()
    assert "N/A" in last
    assert total == TOTAL


def test_json_is_the_clusters_answer(fake: FakeCluster, detcloud: Detcloud) -> None:
    report = json.loads(detcloud("usage", "--by", "pool", "--since", "2026-11-10", "--json").out)
    assert report.keys() == {"by", "since", "until", "items", "total"}
    assert report["since"] == "2026-11-10"


def test_descriptions_show_the_mean_use(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({}, {"paused": True})
    assert "Mean use" not in detcloud("describe", "1").out
    use = {"percent": 41.5, "memory_percent": 60.0, "measured_hours": 12.0}
    fake.experiments[0]["use"] = use
    shown = "41.5 % of 12.0 slot hours, memory 60.0 %"
    assert shown in detcloud("describe", "1").out
