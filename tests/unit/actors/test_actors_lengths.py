import math

import pytest

from control_plane.actors.lengths import Lengths, global_batch_size

EPOCHS = Lengths("epochs", records_per_epoch=1000)
BATCH = {"global_batch_size": 64}


@pytest.mark.parametrize(
    ("lengths", "length", "batches"),
    [
        (Lengths("steps"), 3, 300),  # 100 batches a step
        (Lengths("steps", batches_per_step=7), 3, 21),
        (Lengths("batches"), 3, 3),
        (Lengths("records"), 200, 3),  # 200 / 64 = 3.125
        (Lengths("records"), 63, 1),  # 0.98, and at least 1
        (EPOCHS, 2, 31),  # 2000 / 64 = 31.25
        (Lengths("epochs", records_per_epoch=10), 1, 1),
    ],
)
def test_lengths_are_converted_to_batches(lengths: Lengths, length: int, batches: int) -> None:
    assert lengths.batches(length, BATCH) == batches


@pytest.mark.parametrize(
    ("lengths", "batches", "units"),
    [
        (Lengths("steps"), 250, 2.5),
        (Lengths("batches"), 3, 3.0),
        (Lengths("records"), 3, 192.0),
        (EPOCHS, 31, 1.984),  # 31 * 64 / 1000
    ],
)
def test_batches_are_converted_to_units(lengths: Lengths, batches: int, units: float) -> None:
    assert lengths.units(batches, BATCH) == units


def test_epochs_of_unknown_length_are_not_converted() -> None:
    unknown = Lengths("epochs")
    assert unknown.counts_epochs
    assert not EPOCHS.counts_epochs
    assert not Lengths("batches").counts_epochs
    for convert in (unknown.batches, unknown.units):
        with pytest.raises(ValueError, match="only the trial knows"):
            convert(3, BATCH)


@pytest.mark.parametrize(
    ("found", "size"),
    [(64, 64), (64.9, 64), (1, 1), (0, 1), (-3, 1), (0.5, 1)]
    + [(odd, 1) for odd in (None, True, "64", [64], math.nan, math.inf, -math.inf)]
    + [(10**400, 10**400)],
)
def test_invalid_batch_size_counts_as_1(found: object, size: int) -> None:
    assert global_batch_size({"global_batch_size": found}) == size
    assert global_batch_size({}) == 1
