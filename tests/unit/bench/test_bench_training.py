"""The milliseconds per batch of the training figure, and equal weights of both training loops."""

from dataclasses import replace

import pytest

from bench.figures import QUICK
from bench.training import batch_ms, training


def test_batch_time_includes_a_share_of_the_report() -> None:
    scale = replace(QUICK, training_batches=102)
    # Two runs of 101 intervals of 1 ms. The 100th of each includes the report and takes 3 ms.
    seconds = ([0.001] * 99 + [0.003, 0.001]) * 2
    assert batch_ms(seconds, scale) == pytest.approx(1 + 2 / 100)
    assert batch_ms([0.002] * 19, QUICK) == pytest.approx(2.0)


@pytest.mark.nightly
def test_both_loops_end_with_the_same_weights() -> None:
    # training() raises an exception if the weights differ.
    rows = list(training(replace(QUICK, training_batches=3)))
    assert [row.unit for row in rows] == ["%", "%"]
