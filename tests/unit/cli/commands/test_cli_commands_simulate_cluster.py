"""A whole cluster in virtual time, from the command line."""

import json

from tests.unit.cli.conftest import Detcloud

SMALL = ("--experiments=1", "--pools=1", "--agents=1", "--hours=0.2")


def test_simulation_prints_its_outcome(detcloud: Detcloud) -> None:
    done = detcloud("simulate", "cluster", "--seed", "7", *SMALL)
    assert done.code == 0
    lines = dict(line.split(None, 1) for line in done.out.splitlines())
    assert lines["Clusters"] == "1"
    assert lines["Violations"] == "0"
    assert "times real time" in lines["Time"]


def test_simulation_json_contains_the_digest_of_commits(detcloud: Detcloud) -> None:
    done = detcloud("simulate", "cluster", "--seed", "7", "--faults=none", "--json", *SMALL)
    simulation = json.loads(done.out)
    assert (simulation["ok"], simulation["violations"], simulation["faults"]) == (True, 0, {})
    assert simulation["seed"]["digest"] > 0


def test_error_for_hours_names_the_range(detcloud: Detcloud) -> None:
    done = detcloud("simulate", "cluster", "--hours", "2000000")
    assert done.code == 2
    expected = "expected a number of hours greater than 0 and less than 1000000"
    assert f"'2000000' is not a duration; {expected}" in done.err


def test_unknown_fault_is_refused(detcloud: Detcloud) -> None:
    done = detcloud("simulate", "cluster", "--faults", "floods")
    assert done.code == 2
    assert "there is no fault 'floods'; there are: duplicates, " in done.err
