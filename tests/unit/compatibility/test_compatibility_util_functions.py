"""Utility functions of Determined that training code uses."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from detcloud import DetcloudError
from detcloud.compatibility.util_functions import (
    calculate_batch_sizes,
    chunks,
    download_gcs_blob_with_backoff,
    filter_duplicates,
    force_create_symlink,
    has_param,
    is_numerical_scalar,
    is_overridden,
    merge_dicts,
    safe_load_yaml_with_exceptions,
    strtobool,
    yaml_safe_dump,
)


class Parent:
    def method(self, first: int, second: int) -> None: ...


class Child(Parent):
    def method(self, first: int, second: int) -> None: ...


def test_has_param_and_is_overridden() -> None:
    # Positions count from `self` at 0, so that `second` is at 2.
    assert has_param(Child().method, "second")
    assert has_param(Child().method, "x", 2)
    assert not has_param(Child().method, "x", 3)
    assert is_overridden(Child().method, Parent)
    assert not is_overridden(Parent().method, Parent)


def test_merge_dicts_merges_nested_maps() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merge_dicts(base, {"a": {"b": 9}, "e": 4}) == {"a": {"b": 9, "c": 2}, "d": 3, "e": 4}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3}


def test_scalar_duplicate_chunk_and_bool_functions() -> None:
    assert is_numerical_scalar(1.5)
    assert is_numerical_scalar(numpy.array([2]))
    assert not is_numerical_scalar("1")
    assert not is_numerical_scalar(numpy.array([1, 2]))
    assert filter_duplicates([3, 1, 3, 2, 1]) == {1, 3}
    assert list(chunks([1, 2, 3], 2)) == [[1, 2], [3]]
    assert strtobool("Yes")
    assert not strtobool("off")


def test_batch_size_per_slot_is_rounded_down() -> None:
    # 10 records over 4 slots are 2 per slot and 8 in total.
    assert calculate_batch_sizes({"global_batch_size": 10}, 4, "T") == (2, 8)
    with pytest.raises(DetcloudError, match=r"is 3: T needs an integer of at least .* 4"):
        calculate_batch_sizes({"global_batch_size": 3}, 4, "T")


def test_yaml_parses_numbers_like_a_configuration() -> None:
    assert safe_load_yaml_with_exceptions("a: 1e-5\nb: [1, x]") == {"a": 1e-5, "b": [1, "x"]}
    assert yaml_safe_dump({"b": 1, "a": [2]}) == "b: 1\na:\n- 2\n"


def test_blob_download_is_retried() -> None:
    answers: Iterator[OSError | bytes] = iter([OSError("busy"), b"content"])

    class Blob:
        def download_as_string(self) -> bytes:
            answer = next(answers)
            if isinstance(answer, OSError):
                raise answer
            return answer

    random.seed(5)
    expected = random.random()
    random.seed(5)
    assert download_gcs_blob_with_backoff(Blob(), max_backoff=0) == b"content"
    # The random wait does not draw from the generator that the trial seeded.
    assert random.random() == expected


@pytest.mark.parametrize("n_retries", [0, -1])
def test_download_without_attempts_is_refused(n_retries: int) -> None:
    with pytest.raises(DetcloudError, match=f"n_retries is {n_retries}, and must be at least 1"):
        download_gcs_blob_with_backoff(object(), n_retries)


def test_force_create_symlink_replaces_a_folder(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").write_text("x")
    force_create_symlink(str(tmp_path / "new"), str(tmp_path / "old"))
    assert (tmp_path / "old").read_text() == "x"
