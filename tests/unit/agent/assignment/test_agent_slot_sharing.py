"""The environment of trials that share a slot."""

import pytest

from detcloud.agent.assignment.slot_sharing import share_variables, slot_sharers


def test_shared_slot_has_variables_for_the_share() -> None:
    assert share_variables({"slot_sharers": 4}) == {
        "DETCLOUD_SLOT_SHARE": "0.25",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.25",
    }
    assert share_variables({}) == {}


@pytest.mark.parametrize("sharers", [None, 0, -1, 1, True, 2.5, "4"])
def test_other_numbers_share_nothing(sharers: object) -> None:
    assert slot_sharers({"slot_sharers": sharers}) == 1
