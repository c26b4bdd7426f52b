"""A field in the wrong section is refused with a hint at the right section."""

from typing import Any

import pytest

from tests.unit.config.samples import LENGTH, change_fields, find_problems, to_yaml


@pytest.mark.parametrize(
    ("changes", "path", "place"),
    [
        ({"experiment_seed": 42}, "experiment_seed", "reproducibility.experiment_seed"),
        ({"slots_per_trial": 2}, "slots_per_trial", "resources.slots_per_trial"),
        ({"max_trials": 2}, "max_trials", "searcher.max_trials"),
        ({"image": "a/b"}, "image", "environment.image"),
        ({"save_trial_best": 2}, "save_trial_best", "checkpoint_storage.save_trial_best"),
        ({"searcher.max_restarts": 2}, "searcher.max_restarts", "max_restarts"),
        ({"resources.scheduling_unit": 2}, "resources.scheduling_unit", "scheduling_unit"),
        ({"environment.shm_size": 2}, "environment.shm_size", "resources.shm_size"),
    ],
)
def test_misplaced_field_hints_at_the_right_section(
    changes: dict[str, Any], path: str, place: str
) -> None:
    (problem,) = find_problems(to_yaml(change_fields(LENGTH, changes)))
    assert (problem.path, problem.message) == (path, "is not a known field")
    assert problem.hint == f"write it as {place}"


def test_unknown_field_hints_at_a_similar_field() -> None:
    (problem,) = find_problems(to_yaml({**LENGTH, "label": ["a"]}))
    assert problem.hint == "did you mean labels?"
