"""Sentences about states."""

import pytest

from control_plane.actors.records import Status
from detcloud.cli.rendering.state_sentences import state_sentence


@pytest.mark.parametrize("status", Status)
def test_sentences_do_not_contain_state_names(status: Status) -> None:
    sentence = state_sentence("experiment 3", status)
    assert sentence.startswith("experiment 3 ")
    assert status not in sentence
    assert sentence.partition(":")[0].islower() or sentence.islower()


def test_unknown_state_is_shown_unchanged() -> None:
    assert state_sentence("experiment 3", "FROZEN") == "experiment 3 is FROZEN"
