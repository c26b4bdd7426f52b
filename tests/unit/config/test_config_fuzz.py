from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid
from detcloud.shared.yaml_writer import render_yaml
from tests.unit.config.samples import LENGTH, STEP, change_fields, to_yaml
from tests.unit.config.test_config_searchers import LENGTH_SEARCHERS, STEP_SEARCHERS
from tests.unit.config.test_config_sections import ACCEPTED

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["random", "grid", "log", "int", "s3", "shared_fs", "gpu", "batches"])
)
KEYS = st.sampled_from(
    [
        "name",
        "type",
        "vals",
        "minval",
        "maxval",
        "count",
        "base",
        "metric",
        "max_steps",
        "max_length",
        "max_trials",
        "batches",
        "global_batch_size",
        "image",
        "bucket",
        "host_path",
        "slots_per_trial",
        "x",
    ]
) | st.text(max_size=4)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)
SECTIONS = st.sampled_from([*sorted(ExperimentConfig.model_fields), "batches_per_step", "x"])
SEARCHERS = st.sampled_from(STEP_SEARCHERS + LENGTH_SEARCHERS) | TREES
FEW = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def check_outcome(text: str, **layers: Any) -> ExperimentConfig | ConfigInvalid:
    """Return the configuration or the refusal; any other error fails the test."""
    try:
        config = check_config(text, **layers)
    except ConfigInvalid as error:
        return error
    json.dumps(config.masked_values(), allow_nan=False).encode()
    assert ExperimentConfig.from_json(config.to_json()) == config
    # The output of `experiment config` is a valid configuration, except for masks.
    shown = config.masked_values()
    again = check_config(render_yaml(shown), accepts_masks=True)
    assert (again.era, again.masked_values()) == (config.era, shown)
    return config


@FEW
@given(st.text() | st.text("{}[]&*!:-?|>'\" \n\tab1.,<#%@`", max_size=60))
def test_any_text_is_checked_or_refused(text: str) -> None:
    outcome = check_outcome(text)
    assert isinstance(outcome, ConfigInvalid)
    assert all(problem.message for problem in outcome.problems)
    check_outcome(to_yaml(LENGTH), template=text, overrides=[text])


@FEW
@given(st.dictionaries(SECTIONS, TREES, max_size=5), SEARCHERS)
def test_any_tree_is_checked_or_refused(tree: dict[str, Any], searcher: Any) -> None:
    base = change_fields(STEP if len(tree) % 2 else LENGTH, tree)
    check_outcome(json.dumps(base))
    check_outcome(json.dumps({**base, "searcher": searcher}))


@FEW
@given(SECTIONS, TREES, st.lists(KEYS, max_size=3))
def test_any_override_is_checked_or_refused(section: str, value: Any, path: list[str]) -> None:
    override = f"{'.'.join([section, *path])}={json.dumps(value)}"
    check_outcome(to_yaml(STEP), overrides=[override])
    check_outcome(to_yaml(LENGTH), overrides=[override], template=json.dumps({section: value}))


@FEW
@given(st.dictionaries(KEYS, TREES, max_size=5))
def test_any_space_is_planned_or_refused(hyperparameters: dict[str, Any]) -> None:
    for name in ("single", "random", "grid"):
        searcher = {"name": name, "metric": "loss", "max_length": 5}
        searcher |= {"max_trials": 5} if name == "random" else {}
        tree = {**LENGTH, "searcher": searcher, "hyperparameters": hyperparameters}
        config = check_outcome(json.dumps(tree))
        if isinstance(config, ExperimentConfig):
            assert config.search_plan().space


@FEW
@given(st.sampled_from(ACCEPTED), st.sampled_from(STEP_SEARCHERS), TREES)
def test_masked_sections_can_be_checked_again(
    section: tuple[str, Any], searcher: dict[str, Any], value: Any
) -> None:
    path, given_value = section
    space = {"x": {"type": "categorical", "vals": [value, None]}, "y": value}
    for base, chosen in ((STEP, {"metric": "loss", **searcher}), (LENGTH, LENGTH["searcher"])):
        changes = {"searcher": chosen, "hyperparameters": {"global_batch_size": 64, **space}}
        tree = change_fields(base, changes)
        check_outcome(json.dumps(change_fields(tree, {path: given_value})))
        check_outcome(json.dumps(change_fields(tree, {"data": {"any": value}})))
