"""The conditions of filters: which experiments match, and what the errors say."""

from types import SimpleNamespace
from typing import Any

import pytest

from control_plane.actors.experiment.listing import ListingRow
from control_plane.errors import Code, RequestError
from control_plane.queries.experiment_terms import Conditions, parse_conditions
from control_plane.queries.listed_facts import Facts

ROW = ListingRow(
    "ACTIVE", "bob", "Digits sweep", ("baseline", "two words"), False, "Vision", "Cats"
)
DAY_MS = 86_400_000
# 20,000 days after the epoch: 2024-10-04.
NOW_MS = 20_000 * DAY_MS
FACTS = Facts(
    metric=0.25,
    progress=0.5,
    cost_micros=2_500_000,
    metrics={"loss": 0.25, "eval:acc": 0.9},
    hparams={
        "lr": 0.01,
        "layers": 3,
        "optimizer.name": "adam",
        "frozen": True,
        '"model.depth"': 4,
        "width": {"min": 8, "max": 64},
        "act": {"any": ["relu", "gelu", 2]},
    },
)


def matches(text: str, row: ListingRow = ROW, facts: Facts = FACTS) -> bool:
    conditions = parse_conditions(text, "bob", NOW_MS)
    rows = all(is_met("000000000007", row) for is_met in conditions.rows)
    return rows and all(is_met(facts) for is_met in conditions.facts)


def item(state: str, condition: str, failed: int = 0) -> Any:
    """Return the fields of an experiment that conditions on items read."""
    return SimpleNamespace(state=state, condition=condition, trials=SimpleNamespace(errored=failed))


def matches_item(text: str, found: Any) -> bool:
    row = ROW._replace(state=found.state, has_failed_trials=found.trials.errored > 0)
    conditions = parse_conditions(text, "bob", NOW_MS)
    is_match = all(is_met(found) for is_met in conditions.items)
    if is_match:
        assert matches(text, row), "the row must not exclude a matching experiment"
    return is_match


@pytest.mark.parametrize(
    "text",
    [
        "state:running",
        "state:failed,running",
        "state:ACTIVE",
        "state:active",
        "digits",
        "name:SWEEP",
        '"digits sweep"',
        "name:other,digits",
        "user:me",
        "user:bob",
        "label:baseline",
        'label:x,"two words"',
        "workspace:Vision project:Cats",
        "archived:false",
        "archived:all",
        "id:7",
        "id>6 id<=7",
        "id:1,7",
        "best<0.3",
        "best:0.25",
        "progress>=50%",
        "progress<0.6",
        "cost>2 cost<=2.5",
        "metric:loss<0.3",
        'metric:"eval:acc">0.8',
        "metric:loss=0.25",
        "lr>0.001",
        "lr=0.01",
        "lr=1,0.01",
        "hparam:lr<0.1",
        "optimizer.name=adam",
        "frozen=true",
        '"model.depth"=4',
        # A range or a choice matches if one of its values does.
        "width>60",
        "width<9",
        "width=20",
        "width>=64",
        "act=gelu",
        "act>1",
        "act=2",
        "-state:failed",
        "-label:old",
        "user!=alice",
        "-metric:loss>0.3",
        "-missing>0",
    ],
)
def test_matching_filters(text: str) -> None:
    assert matches(text)


@pytest.mark.parametrize(
    "text",
    [
        "state:failed",
        "state:ended",
        "other",
        "user:alice",
        'user:"me"',
        "label:base",
        "workspace:vision",
        "archived:true",
        "id<7",
        "best<0.25",
        "progress>50%",
        "cost>2.5",
        "metric:loss>0.3",
        "metric:accuracy>0",
        "lr>0.01",
        "optimizer.name=sgd",
        "optimizer.name>1",
        "frozen=1",
        "frozen>0",
        'lr="0.01"',
        "model.depth=4 -lr=0.01",
        "width>64",
        "width<8",
        "width=7",
        "act=tanh",
        "missing>0",
        "digits other",
    ],
)
def test_other_filters(text: str) -> None:
    assert not matches(text)


def test_experiment_without_figures_matches_no_comparison() -> None:
    for text in ("best<1", "best>=0", "progress>=0", "metric:loss<1", "lr=0"):
        assert not matches(text, facts=Facts())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state:running", ["running"]),
        ("state:queued,finished", ["queued", "finished"]),
        ("state:ACTIVE", ["running", "queued"]),
        ("state:ended", ["finished", "failed"]),
        ("-state:running", ["queued", "finished", "failed"]),
        ("-state:running,queued,ended", []),
        ("state!=ended", ["running", "queued"]),
        ("failed-trials:true", ["failed"]),
        ("-failed-trials:true state:active,ended", ["running", "queued", "finished"]),
    ],
)
def test_states_are_decided_by_the_described_experiment(text: str, expected: list[str]) -> None:
    items = [
        item("ACTIVE", "running"),
        item("ACTIVE", "queued"),
        item("COMPLETED", "finished"),
        item("ERROR", "failed", failed=2),
    ]
    assert [one.condition for one in items if matches_item(text, one)] == expected


def test_rows_exclude_states_that_cannot_match() -> None:
    for text in ("state:failed", "-state:running,queued,waiting", "-state:active", "state:ended"):
        assert not matches(text)
    # An active experiment may be queued instead of running.
    assert matches("-state:running")
    assert not matches("-failed-trials:false", ROW._replace(has_failed_trials=False))
    # The row of an older release does not tell.
    assert matches("failed-trials:true")
    assert matches("failed-trials:false")


def test_needs_are_the_facts_of_the_terms() -> None:
    assert parse_conditions("digits state:running", "bob", NOW_MS).needs == frozenset()
    assert parse_conditions("best<1 cost<1", "bob", NOW_MS).needs == {"figures"}
    assert parse_conditions("metric:a<1 lr=1", "bob", NOW_MS).needs == {"metrics", "hparams"}


def test_metadata_terms_are_searched_by_index() -> None:
    conditions = parse_conditions(
        'metadata:data.version=3 metadata:note="two words"', "bob", NOW_MS
    )
    assert conditions == Conditions(metadata=("data.version=3", "note=two words"))


def test_filter_may_decide_about_archived_experiments() -> None:
    assert parse_conditions("-archived:true", "bob", NOW_MS).names_archived
    assert not parse_conditions("state:ended", "bob", NOW_MS).names_archived


@pytest.mark.parametrize(
    ("text", "column", "part"),
    [
        ("digits state:runing", 14, "expected one of running, queued,"),
        ("lr:0.1", 1, "or a hyperparameter with =, !=, <, <=, > or >="),
        ("-stat:running", 2, "expected one of state, user,"),
        ("metric:loss<low", 13, "expected a number, as in metric:loss<0.3"),
        ("lr>low", 4, "expected a number, as in lr>0.01"),
        ("state>running", 1, "because only numbers have a size"),
        ("archived:maybe", 10, "expected one of true, false, all"),
        ("metric<1", 1, "as in metric:loss<0.3"),
        ("metadata:x", 10, "expected a name and a comparison"),
        ("metadata=x", 1, "as in metadata:key=value"),
        ("-metadata:a=b", 1, "expected metadata:key=value"),
        ("metadata:a<1", 1, "expected metadata:key=value"),
        ("ended>yesterday", 7, "a day or an age (m, h, d, w), as in ended>=2026-11-01 or ended>7d"),
        ("submitted<2026-02-30", 11, "a day or an age"),
        ("ended:7d", 7, "< or > before an age, as in ended>7d for the last week"),
        ("progress>half%", 10, "as in progress>50%"),
    ],
)
def test_error_has_place_and_expectation(text: str, column: int, part: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse_conditions(text, "bob", NOW_MS)
    assert raised.value.code is Code.INVALID
    [detail] = raised.value.details
    assert (detail.path, detail.column) == ("filter", column)
    assert f"character {column}: " in raised.value.message
    assert part in raised.value.message


@pytest.mark.parametrize(
    ("text", "is_match"),
    [
        # Submitted at 2024-10-01T12:00, two and a half days (60 h) before now.
        ("submitted:2024-10-01", True),
        ("submitted>2024-10-01", False),
        ("submitted>=2024-10-01", True),
        ("submitted<=2024-10-01", True),
        ("submitted<2024-10-01", False),
        ("submitted>3d", True),
        ("submitted>2d", False),
        ("submitted<50h", True),
        ("-submitted>1w", False),
        # Not ended.
        ("ended>7d", False),
        ("-ended>7d", True),
    ],
)
def test_days_and_ages_are_compared_with_times(text: str, is_match: bool) -> None:
    # 2024-10-01 is day 19,997.
    facts = FACTS._replace(submitted_ms=19_997 * DAY_MS + DAY_MS // 2)
    assert matches(text, facts=facts) == is_match
    assert parse_conditions(text, "bob", NOW_MS).needs == {"times"}
