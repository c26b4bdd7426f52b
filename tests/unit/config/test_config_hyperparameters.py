from __future__ import annotations

import json
from typing import Any

import pytest

from control_plane.config.advice import config_warnings
from control_plane.config.hyperparameters import Const
from control_plane.config.preview import preview_search
from control_plane.searchers import space
from control_plane.searchers.method import CreateTrial
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import begin_search, expand_creates
from tests.unit.config.samples import ABSENT, LENGTH, STEP, check_changed, find_messages

RANDOM = {"name": "random", "metric": "loss", "max_steps": 1, "max_trials": 1}
GRID = {"name": "grid", "metric": "loss", "max_steps": 1}
LENGTH_GRID = {"name": "grid", "metric": "loss", "max_length": 1}
NESTED = {"optimizer": {"name": "adam", "lr": {"type": "double", "minval": 0, "maxval": 1}}}


def step_space(parameter: Any) -> dict[str, Any]:
    return {"searcher": RANDOM, "hyperparameters.x": parameter}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (64, space.Const(64)),
        (None, space.Const(None)),
        ([1, 2], space.Const([1, 2])),
        ({"type": "const", "val": {"type": "log"}}, space.Const({"type": "log"})),
        ({"type": "const", "val": None}, space.Const(None)),
        (
            {"type": "categorical", "vals": ["SGD", None, [1]]},
            space.Categorical(("SGD", None, [1])),
        ),
        ({"type": "double", "minval": 0.2, "maxval": 0.5}, space.Double(0.2, 0.5)),
        ({"type": "int", "minval": -3, "maxval": 5, "count": 2}, space.Int(-3, 5, 2)),
        ({"type": "log", "minval": -5, "maxval": 1.0, "base": 10}, space.Log(10.0, -5.0, 1.0)),
    ],
)
def test_hyperparameters_become_the_search_space(written: Any, expected: object) -> None:
    plan = check_changed(STEP, step_space(written)).search_plan()
    assert plan.space.members["x"] == expected


@pytest.mark.parametrize(
    ("written", "field", "message"),
    [
        ({"minval": 1}, "type", "is required"),
        ({}, "type", "is required"),
        ({"type": "float"}, "type", "must be one of categorical, const, double, int, log, not"),
        ({"type": "int", "minval": 1, "maxval": 1}, "maxval", "must be greater than minval (1)"),
        ({"type": "double", "minval": 1.5, "maxval": 1}, "maxval", "must be greater than minval"),
        ({"type": "int", "minval": 1.5, "maxval": 3}, "minval", "must be an integer, not 1.5"),
        ({"type": "int", "minval": 1}, "maxval", "is required"),
        ({"type": "int", "minval": 1, "maxval": 2, "count": 0}, "count", "must be at least 1"),
        ({"type": "int", "minval": 1, "maxval": 2, "step": 1}, "step", "is not a known field"),
        ({"type": "log", "minval": -5, "maxval": 1}, "base", "is required"),
        ({"type": "log", "minval": -5, "maxval": 1, "base": 0}, "base", "greater than 0, not 0"),
        ({"type": "log", "minval": -5, "maxval": 400, "base": 10}, "maxval", "too large or too"),
        ({"type": "log", "minval": 1, "maxval": 1, "base": 10}, "maxval", "greater than minval"),
        ({"type": "categorical", "vals": []}, "vals", "must not be empty"),
        ({"type": "categorical"}, "vals", "is required"),
        ({"type": "categorical", "vals": None}, "vals", "is required"),
        ({"type": "categorical", "vals": "abc"}, "vals", "must be a list"),
        ({"type": "const"}, "val", "is required"),
        ({"type": "const", "value": 3}, "value", "is not a known field"),
        ({"type": None}, "type", "is required"),
        ({"type": "double", "minval": -1.7e308, "maxval": 1}, "minval", "at least -1e+300, not"),
        ({"type": "double", "minval": 1, "maxval": 1.7e308}, "maxval", "at most 1e+300, not"),
        ({"type": "log", "minval": 0, "maxval": 1.7e308, "base": 1}, "maxval", "at most 1e+300"),
        ({"type": "int", "minval": 0, "maxval": 1 << 63}, "maxval", "at most 9223372036854775807"),
    ],
)
def test_problems_of_hyperparameters_name_the_field(written: Any, field: str, message: str) -> None:
    assert message in find_messages(STEP, step_space(written))[f"hyperparameters.x.{field}"]


def test_only_the_length_era_has_hyperparameter_groups() -> None:
    random = {"name": "random", "metric": "loss", "max_length": 1, "max_trials": 1}
    config = check_changed(LENGTH, {"hyperparameters": NESTED, "searcher": random})
    group = space.Group({"name": space.Const("adam"), "lr": space.Double(0.0, 1.0)})
    assert config.search_plan().space == space.Group({"optimizer": group})
    messages = find_messages(
        STEP, {"hyperparameters.optimizer": NESTED["optimizer"], "searcher": RANDOM}
    )
    assert messages == {"hyperparameters.optimizer.type": "is required"}


def test_problems_of_nested_hyperparameters_have_the_full_path() -> None:
    messages = find_messages(LENGTH, {"hyperparameters": NESTED, "searcher": LENGTH_GRID})
    assert messages == {"hyperparameters.optimizer.lr.count": "is required by the grid searcher"}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", (-(1 << 63), (1 << 63) - 1)),
        ("double", (-1e300, 1e300)),
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_widest_ranges_are_sampled_within_bounds(
    kind: str, value: tuple[float, float], count: int
) -> None:
    widest = {"type": kind, "minval": value[0], "maxval": value[1], "count": count}
    config = check_changed(LENGTH, {"searcher": LENGTH_GRID, "hyperparameters.x": widest})
    members = config.search_plan().space
    drawn = space.draw_hparams(members, Generator.from_seed(1), maxval_drawn=True)
    for sample in [drawn, *(space.grid_point(members, i) for i in range(count))]:
        x = sample["x"]
        assert isinstance(x, int | float)
        assert value[0] <= x <= value[1]


def test_grid_requires_counts_of_ranges_in_lists() -> None:
    ranges = [10, {"type": "int", "minval": 1, "maxval": 2}, [{"y": {"type": "log"}}]]
    changes = {"searcher": LENGTH_GRID, "hyperparameters": {"g": {"x": ranges}}}
    message = "is required by the grid searcher"
    path = "hyperparameters.g.x"
    assert find_messages(LENGTH, changes) == {
        f"{path}[1].count": message,
        f"{path}[2][0].y.count": message,
    }
    ranges[1:] = [{"type": "int", "minval": 1, "maxval": 2, "count": 2}, {"type": "const"}]
    # A list is a constant with any content: a single point.
    assert check_changed(LENGTH, changes).trials == 1
    assert check_changed(LENGTH, {"hyperparameters.x": [{"type": "log"}]}).trials == 1


def test_grid_requires_a_count_of_ranges() -> None:
    ranges = {
        "a": {"type": "int", "minval": 1, "maxval": 9},
        "b": {"type": "log", "minval": 1, "maxval": 9, "base": 2, "count": 3},
    }
    messages = find_messages(
        STEP, {"searcher": GRID, "hyperparameters": {"global_batch_size": 1} | ranges}
    )
    assert list(messages) == ["hyperparameters.a.count"]


@pytest.mark.parametrize(
    ("counts", "fits"),
    [
        ([20, 10, 10], True),  # 2000
        ([20, 10, 10, 2], False),  # 4000
        ([2001], False),
    ],
)
def test_grid_of_the_step_era_has_at_most_2000_points(counts: list[int], fits: bool) -> None:
    axes = {
        f"x{n}": {"type": "double", "minval": 0, "maxval": 1, "count": count}
        for n, count in enumerate(counts)
    }
    changes = {"searcher": GRID, "hyperparameters": {"global_batch_size": 1, **axes}}
    if fits:
        assert check_changed(STEP, changes).trials == 2000
    else:
        assert "points, at most 2000 are allowed" in find_messages(STEP, changes)["hyperparameters"]


def test_step_era_counts_integer_axes_without_maxval_for_the_limit() -> None:
    axes = {
        "layers": {"type": "int", "minval": 0, "maxval": 2000, "count": 5000},
        "global_batch_size": 1,
    }
    # The era's rule counts min(5000, 2000 - 0) = 2000 points, although the grid has 2001.
    assert check_changed(STEP, {"searcher": GRID, "hyperparameters": axes}).trials == 2001


def test_grid_of_the_length_era_has_at_most_100000_points() -> None:
    axis = {"type": "double", "minval": 0, "maxval": 1, "count": 10**5}
    changes: dict[str, Any] = {"searcher": LENGTH_GRID, "hyperparameters": {"x": axis}}
    assert check_changed(LENGTH, changes).trials == 100_000
    changes["hyperparameters"] = {"x": axis, "y": {**axis, "count": 2}}
    assert find_messages(LENGTH, changes) == {
        "hyperparameters": "make a grid of 200000 points, at most 100000 are allowed"
    }


@pytest.mark.parametrize("base", [STEP, LENGTH])
def test_rejects_a_grid_beyond_floating_point_range(base: dict[str, Any]) -> None:
    # (2**53 - 1)**300 points are about 10**4786, more than any float.
    axis = {"type": "double", "minval": 0, "maxval": 1, "count": (1 << 53) - 1}
    axes = {f"x{n}": axis for n in range(300)} | {"global_batch_size": 1}
    searcher = GRID if base is STEP else LENGTH_GRID
    messages = find_messages(base, {"searcher": searcher, "hyperparameters": axes})
    assert "make a grid of more than 10**18 points" in messages["hyperparameters"]


@pytest.mark.parametrize("value", [[1], "lr"])
def test_hyperparameters_must_be_a_map(value: object) -> None:
    assert find_messages(LENGTH, {"hyperparameters": value})["hyperparameters"] == "must be a map"


def test_rejects_grid_without_hyperparameters() -> None:
    assert "hyperparameters" in find_messages(LENGTH, {"searcher": LENGTH_GRID})


@pytest.mark.parametrize("base", [STEP, LENGTH])
def test_single_search_warns_of_drawn_values(base: dict[str, Any]) -> None:
    changes: dict[str, Any] = {
        "hyperparameters": {
            "global_batch_size": 64,
            "lr": {"type": "double", "minval": 0, "maxval": 1},
            "n": {"type": "int", "minval": 1, "maxval": 100},
            "a.b": {"type": "categorical", "vals": ["x", "y", "z"]},
        },
        "reproducibility.experiment_seed": 77,
    }
    config = check_changed(base, changes)
    # The values that the search draws for the trial.
    plan, generator = config.search_plan(), Generator.from_seed(77)
    created = expand_creates(plan, begin_search(plan).state, generator, 9).operations[0]
    assert isinstance(created, CreateTrial)
    warnings = list(config_warnings(config))
    for name, warning in zip(("lr", "n", '"a.b"'), warnings, strict=True):
        value = json.dumps(created.hparams[name.strip('"')])
        assert warning.startswith(
            f"hyperparameters.{name}: the single searcher draws one value, which is {value} with "
            "reproducibility.experiment_seed 77; "
        )
    assert list(config_warnings(check_changed(base, {}))) == []


def test_single_search_warns_of_values_in_groups() -> None:
    group = {"optimizer": {"lr": {"type": "double", "minval": 0, "maxval": 1}, "name": "sgd"}}
    (warning,) = config_warnings(check_changed(LENGTH, {"hyperparameters": group}))
    assert warning.startswith("hyperparameters.optimizer.lr: the single searcher draws one value")


def test_random_search_does_not_warn_of_ranges() -> None:
    changes = {"hyperparameters.lr": {"type": "double", "minval": 0, "maxval": 1}}
    assert list(config_warnings(check_changed(STEP, {**changes, "searcher": RANDOM}))) == []


LENGTH_RANDOM = {"name": "random", "metric": "loss", "max_trials": 3, "max_length": {"batches": 9}}


@pytest.mark.parametrize(
    ("base", "minval", "maxval", "text"),
    [
        # As exponents: 10 ** 0.001 to 10 ** 0.1.
        (10, 0.001, 0.1, "1.259; for values from 0.001 to 0.1 write minval: -3, maxval: -1"),
        (10, 1e-5, 1, "to 10; for values from 1e-05 to 1 write minval: -5, maxval: 0"),
        (2, 0.25, 0.5, "write minval: -2, maxval: -1"),
        (2, 16, 256, "write minval: 4, maxval: 8"),
        (10, 1, 100, "write minval: 0, maxval: 2"),
    ],
)  # fmt: skip
def test_logarithmic_range_of_values_is_warned_of(
    base: float, minval: float, maxval: float, text: str
) -> None:
    lr = {"type": "log", "base": base, "minval": minval, "maxval": maxval}
    changes = {"hyperparameters.lr": lr, "searcher": LENGTH_RANDOM}
    (warning,) = config_warnings(check_changed(LENGTH, changes))
    assert warning.startswith(f"hyperparameters.lr: minval and maxval are exponents of base {base}")
    assert warning.endswith(text)


@pytest.mark.parametrize(
    ("base", "minval", "maxval"),
    [
        *[(10, -3, -1), (10, -5, 0), (10, 0, 2), (10, 0.5, 2), (10, 0.5, 1)],
        *[(2, 1, 8), (2, 4, 10), (0.1, 1, 3), (1, 1, 2)],
    ],
)
def test_logarithmic_range_of_exponents_is_not_warned_of(
    base: float, minval: float, maxval: float
) -> None:
    lr = {"type": "log", "base": base, "minval": minval, "maxval": maxval}
    changes = {"hyperparameters.lr": lr, "searcher": LENGTH_RANDOM}
    assert list(config_warnings(check_changed(LENGTH, changes))) == []


def test_warns_of_names_that_differ_only_in_quotes() -> None:
    changes = {"hyperparameters": {"a.b": 1, "a": {"b": 2}}}
    (warning,) = config_warnings(check_changed(LENGTH, changes))
    assert warning.startswith(
        'hyperparameters.a.b: is another hyperparameter than hyperparameters."a.b"'
    )


def test_step_era_search_warns_of_undrawn_integers() -> None:
    changes = {"hyperparameters.n": {"type": "int", "minval": 1, "maxval": 4, "count": 4}}
    config = check_changed(STEP, {**changes, "searcher": RANDOM})
    # The era's rule: minval + [0, maxval - minval), so 1, 2 and 3.
    assert list(config_warnings(config)) == [
        "hyperparameters.n: 4 is never drawn where lengths are in steps; write maxval: 5 to draw "
        "it too"
    ]
    assert list(config_warnings(check_changed(STEP, {**changes, "searcher": GRID}))) == []
    in_lengths = {**changes, "searcher": LENGTH_RANDOM}
    assert list(config_warnings(check_changed(LENGTH, in_lengths))) == []


@pytest.mark.parametrize(
    ("size", "slots", "message"),
    [
        (ABSENT, 1, "is required"),
        ("64", 1, "must be an integer of at least 1"),
        (0, 1, "must be an integer of at least 1"),
        ({"type": "double", "minval": 1, "maxval": 9}, 1, "must be an integer of at least 1"),
        ({"type": "categorical", "vals": [8, 1.5]}, 1, "must be an integer of at least 1"),
        (7, 8, "must be at least slots_per_trial (8), but can be 7"),
        ({"type": "categorical", "vals": [16, 4]}, 8, "(8), but can be 4"),
        ({"type": "int", "minval": 2, "maxval": 64}, 8, "(8), but can be 2"),
    ],
)
def test_step_era_needs_a_batch_size_of_at_least_the_slots(
    size: Any, slots: int, message: str
) -> None:
    changes = {
        "hyperparameters.global_batch_size": size,
        "resources.slots_per_trial": slots,
        "searcher": RANDOM,
    }
    assert message in find_messages(STEP, changes)["hyperparameters.global_batch_size"]


def test_native_parallel_trials_may_have_small_batches() -> None:
    resources = {"slots_per_trial": 8, "native_parallel": True}
    changes = {"resources": resources, "hyperparameters.global_batch_size": 1}
    assert check_changed(STEP, changes).job.slots_per_trial == 8


@pytest.mark.parametrize(
    "length", [{"batches": 1000}, {"records": 1000}, {"epochs": 10}], ids=["batch", "record", "ep"]
)
def test_missing_batch_size_counts_batches_as_records_in_the_length_era(
    length: dict[str, int],
) -> None:
    config = check_changed(LENGTH, {"searcher.max_length": length, "records_per_epoch": 100})
    assert config.hyperparameters == {}
    [count] = length.values()
    # 10 epochs of 100 records are 1000 batches, too.
    assert config.batches(count, {}) == 1000
    assert preview_search(config).batches == 1000
    assert bool(list(config_warnings(config))) == ("batches" not in length)


@pytest.mark.parametrize("size", [32e0, {"type": "const", "val": 32e0}])
def test_whole_float_batch_size_becomes_an_integer(size: Any) -> None:
    for era in (STEP, LENGTH):
        config = check_changed(era, {"hyperparameters.global_batch_size": size})
        assert repr(config.hyperparameters["global_batch_size"]) == repr(Const(val=32))
    config = check_changed(LENGTH, {"hyperparameters.x": 32e0})
    assert repr(config.hyperparameters["x"]) == repr(Const(val=32.0))


def test_rejects_fractional_batch_size_with_records() -> None:
    changes = {"searcher.max_length": {"records": 10}, "hyperparameters.global_batch_size": 1.5}
    messages = find_messages(LENGTH, changes)
    assert messages == {
        "hyperparameters.global_batch_size": (
            "must be an integer of at least 1, or choose among such"
        )
    }
