"""Sentences about states."""

import pytest

from control_plane.actors.records import Status
from detcloud.cli.rendering.state_sentences import state_sentence


@pytest.mark.parametrize("status", Status)
def test_no_sentence_shows_the_name_of_a_state(status: Status) -> None:
    sentence = state_sentence("experiment 3", status)
    assert sentence.startswith("experiment 3 ")
    assert status not in sentence
    assert sentence.partition(":")[0].islower() or sentence.islower()


def test_a_state_of_a_newer_cluster_is_shown_as_it_is() -> None:
    assert state_sentence("experiment 3", "FROZEN") == "experiment 3 is FROZEN"
