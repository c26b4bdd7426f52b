"""The submitted values of a configuration: without defaults, and with the same meaning."""

from pathlib import Path
from typing import Any

import pytest

from control_plane.config.check import check_config, find_stated_fields
from control_plane.config.stated_fields import STATED_BYTES_MAX, submitted_values
from detcloud.shared.yaml_writer import render_yaml

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").rglob("*.yaml"))
TEXT = """
name: digits
entrypoint: python train.py
searcher:
  name: random
  metric: loss
  max_length: {batches: 10}
  max_trials: 4
hyperparameters:
  lr: {type: log, base: 10, minval: -4, maxval: -1}
  empty: null
max_restarts: null
"""


def read_submitted(
    text: str, template: str = "", overrides: tuple[str, ...] = ()
) -> dict[str, Any]:
    config = check_config(text, template=template, overrides=overrides)
    return submitted_values(config, find_stated_fields(text, template, overrides, config.era))


def test_has_the_set_fields_in_their_order() -> None:
    assert read_submitted(TEXT) == {
        "name": "digits",
        "entrypoint": "python train.py",
        "searcher": {
            "name": "random",
            "metric": "loss",
            "max_length": {"batches": 10},
            "max_trials": 4,
        },
        "hyperparameters": {
            "lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1},
            "empty": None,
        },
    }
    assert list(read_submitted(TEXT)) == ["name", "entrypoint", "searcher", "hyperparameters"]


def test_includes_overrides_and_template() -> None:
    template = "max_restarts: 2\nresources: {slots_per_trial: 1}\nname: hidden\n"
    values = read_submitted(TEXT, template, ("searcher.max_trials=8", "resources.weight=2"))
    assert (values["name"], values["max_restarts"]) == ("digits", 2)
    assert values["searcher"]["max_trials"] == 8
    assert values["resources"] == {"slots_per_trial": 1, "weight": 2.0}


def test_a_value_equal_to_the_default_stays_if_it_was_set() -> None:
    assert read_submitted(TEXT, overrides=("max_restarts=5",))["max_restarts"] == 5


def test_masks_secrets() -> None:
    secret = "environment: {environment_variables: [API_TOKEN=very-secret]}\n"
    values = read_submitted(TEXT + secret)
    assert "very-secret" not in render_yaml(values)
    assert "environment_variables" in values["environment"]


def test_too_many_set_fields_are_not_kept() -> None:
    names = "".join(f"  parameter_{n}: 1\n" for n in range(1_000))
    text = TEXT.replace("  empty: null\n", names)
    # 1,000 times `"parameter_0":true,`, at least 19 bytes each.
    assert STATED_BYTES_MAX < 19 * 1_000
    assert find_stated_fields(text, None, (), check_config(text).era) == {}


@pytest.mark.parametrize("stated", [True, False], ids=["stated", "older release"])
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_submitted_values_have_the_same_meaning(path: Path, stated: bool) -> None:
    text = path.read_text()
    config = check_config(text, seed_default=7)
    fields = find_stated_fields(text, None, (), config.era) if stated else {}
    written = render_yaml(submitted_values(config, fields))
    again = check_config(written, seed_default=7, accepts_masks=True)
    assert again.masked_values() == config.masked_values()
