"""The rules of CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES."""

from __future__ import annotations

import pytest

from detcloud.agent.devices.visible import visible_positions

UUIDS = ("GPU-aa11", "GPU-ab22", "GPU-cc33")


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("0,2", [0, 2]),
        ("2,0", [2, 0]),
        (" 1 , 2", [1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        # Entries after an invalid entry are ignored.
        ("1,-1,2", [1]),
        ("0,3,1", [0]),
        ("0,x,1", [0]),
        # C's strtoul reads the digits at the beginning.
        ("1x,2y", [1, 2]),
        # A repeated device makes no device visible.
        ("0,0", []),
        ("GPU-cc33,GPU-aa11", [2, 0]),
        ("GPU-cc,GPU-aa", [2, 0]),
        ("gpu-CC33", [2]),
        # The beginning of two UUIDs is ambiguous.
        ("GPU-a", []),
        ("GPU-c,GPU-a,GPU-aa11", [2]),
        ("GPU-zz,GPU-aa11", []),
        # An entry of another kind than the first is invalid.
        ("0,GPU-cc33", [0]),
        ("GPU-cc33,0", [2]),
    ],
)
def test_cuda_rules(text: str, positions: list[int]) -> None:
    assert visible_positions(text, UUIDS) == positions


def test_exact_uuid_wins_over_a_longer_uuid() -> None:
    assert visible_positions("GPU-a", ("GPU-ab", "GPU-a")) == [1]


def test_rocm_mixes_numbers_and_uuids() -> None:
    assert visible_positions("0,GPU-cc33", UUIDS, mixes=True) == [0, 2]
