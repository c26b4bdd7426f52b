"""A whole cluster in virtual time, from the command line."""

import json

from tests.unit.cli.conftest import Detcloud

SMALL = ("--experiments=1", "--pools=1", "--agents=1", "--hours=0.2")


def test_a_simulation_prints_its_outcome(detcloud: Detcloud) -> None:
    done = detcloud("simulate", "cluster", "--seed", "7", *SMALL)
    assert done.code == 0
    lines = dict(line.split(None, 1) for line in done.out.splitlines())
    assert lines["Clusters"] == "1"
    assert lines["Violations"] == "0"
    assert "times real time" in lines["Time"]


def test_a_simulation_is_printed_as_json_with_the_digest_of_its_commits(detcloud: Detcloud) -> None:
    done = detcloud("simulate", "cluster", "--seed", "7", "--faults=none", "--json", *SMALL)
    found = json.loads(done.out)
    assert (found["ok"], found["violations"], found["faults"]) == (True, 0, {})
    assert found["seed"]["digest"] > 0


def test_hours_are_named_in_the_error(detcloud: Detcloud) -> None:
    done = detcloud("simulate", "cluster", "--hours", "2000000")
    assert done.code == 2
    expected = "expected a number of hours greater than 0 and less than 1000000"
    assert f"'2000000' is not a duration; {expected}" in done.err


def test_a_fault_that_there_is_none_of_is_refused(detcloud: Detcloud) -> None:
    done = detcloud("simulate", "cluster", "--faults", "floods")
    assert done.code == 2
    assert "there is no fault 'floods'; there are: duplicates, " in done.err
