"""Each setting that acts on nothing gives one notice, and the reference says so too."""

from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.config.advice import config_warnings
from control_plane.config.check import check_config
from control_plane.config.reference import render_reference
from detcloud.shared.unused_settings import UNUSED_SETTINGS, unused_setting_notices


def names_without_effect() -> Iterator[str]:
    """The name of each field that the reference calls kept and shown."""
    for line in render_reference().splitlines():
        if "Kept and shown" in line:
            yield line.split("`")[1]


def test_what_the_reference_calls_kept_and_shown_is_what_has_a_notice() -> None:
    noticed = {path[-1] for path in (it.path for it in UNUSED_SETTINGS)}
    said = set(names_without_effect())
    assert said - noticed == set()
    # The reference tells of these in other words.
    assert noticed - said == {"ports", "mixed_precision"} - said


@pytest.mark.parametrize("setting", UNUSED_SETTINGS, ids=lambda it: ".".join(it.path))
def test_a_setting_that_asks_for_something_gives_one_notice(setting: Any) -> None:
    value: Any = "O2" if "mixed_precision" in setting.path else 7
    config: dict[str, Any] = {"checkpoint_storage": {"type": setting.storage}}
    section = config
    for name in setting.path[:-1]:
        section = section.setdefault(name, {})
    if setting.switch:
        section[setting.path[-1]] = value
        assert list(unused_setting_notices(config)) == []
        section[setting.switch] = True
    section[setting.path[-1]] = value
    (notice,) = unused_setting_notices(config)
    assert notice.startswith(f"{'.'.join(setting.path)} is not used: ")
    section[setting.path[-1]] = setting.neutral[0] if setting.neutral else None
    assert list(unused_setting_notices(config)) == []


def test_a_submission_is_warned_and_one_of_defaults_is_not() -> None:
    text = """
name: n
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""
    assert list(config_warnings(check_config(text))) == []
    more = "log_policies: [{pattern: x}]\nprofiling: {enabled: true, begin_on_batch: 3}\n"
    assert [it.split()[0] for it in config_warnings(check_config(text + more))] == [
        "profiling.begin_on_batch",
        "log_policies",
    ]


@pytest.mark.parametrize(
    ("entrypoint", "more"),
    [
        ("model_def:Trial", ""),
        ("python train.py", "; a script for Determined gets this length as it stands"),
    ],
)
def test_epochs_without_a_batch_size_are_warned_of(entrypoint: str, more: str) -> None:
    text = f"""
name: n
entrypoint: {entrypoint}
records_per_epoch: 100
searcher: {{name: single, metric: loss, max_length: {{epochs: 2}}}}
"""
    (warning,) = config_warnings(check_config(text))
    assert warning == (
        "searcher.max_length: without hyperparameters.global_batch_size a batch counts as one"
        f" record{more}"
    )
