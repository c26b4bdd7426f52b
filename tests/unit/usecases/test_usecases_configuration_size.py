"""The size of a configuration: the stored form fits, or the submission is refused."""

import json

import pytest

from control_plane.usecases.submission import STORED_BYTES_MAX
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import Cluster
from tests.unit.api.exchange import Answer

HYPERPARAMETERS = "hyperparameters:\n"
CHARACTERS_MAX = 256 * 1024


def submit(cluster: Cluster, section: str, text: str) -> Answer:
    """Submit a configuration with a long constant in a section."""
    constant = json.dumps(text, ensure_ascii=False)
    if section == "hyperparameters":
        config = CONFIG.replace(HYPERPARAMETERS, f"{HYPERPARAMETERS}  constant: {constant}\n")
    else:
        config = f"{CONFIG}{section}:\n  constant: {constant}\n"
    return cluster.create(config)


@pytest.mark.parametrize("section", ["hyperparameters", "data"])
@pytest.mark.parametrize("text", ["a", "\N{GREEK SMALL LETTER ALPHA}", '"\\'])
def test_configuration_is_stored_up_to_the_limit(cluster: Cluster, section: str, text: str) -> None:
    fits, refused = 1_000, CHARACTERS_MAX
    assert submit(cluster, section, text * (fits // len(text))).status == 201
    while refused - fits > 1_000:
        middle = (fits + refused) // 2
        status = submit(cluster, section, text * (middle // len(text))).status
        # The check refuses before the table does: an error of the table would name internal rows.
        assert status in (201, 422)
        fits, refused = (middle, refused) if status == 201 else (fits, middle)
    assert fits > 40_000


def test_rejects_too_large_configuration_naming_largest_section(
    cluster: Cluster,
) -> None:
    answer = submit(cluster, "hyperparameters", "class " * 40_000)
    assert (answer.status, answer.code) == (422, "invalid")
    (problem,) = answer.json["error"]["details"]
    assert problem["path"] == "hyperparameters"
    assert f"{STORED_BYTES_MAX:,} at most" in problem["message"]
    assert problem["hint"] == "store long constants in a file with the model code"
    assert submit(cluster, "data", "class").json["id"] == 1
