"""The small functions of Determined that training code uses."""

import random
import time
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


def test_what_a_method_takes_and_who_defines_it() -> None:
    # `self` stands at 0, so `second` at 2.
    assert has_param(Child().method, "second")
    assert has_param(Child().method, "x", 2)
    assert not has_param(Child().method, "x", 3)
    assert is_overridden(Child().method, Parent)
    assert not is_overridden(Parent().method, Parent)


def test_maps_are_laid_over_each_other() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merge_dicts(base, {"a": {"b": 9}, "e": 4}) == {"a": {"b": 9, "c": 2}, "d": 3, "e": 4}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3}


def test_values_are_told_apart() -> None:
    assert is_numerical_scalar(1.5)
    assert is_numerical_scalar(numpy.array([2]))
    assert not is_numerical_scalar("1")
    assert not is_numerical_scalar(numpy.array([1, 2]))
    assert filter_duplicates([3, 1, 3, 2, 1]) == {1, 3}
    assert list(chunks([1, 2, 3], 2)) == [[1, 2], [3]]
    assert strtobool("Yes")
    assert not strtobool("off")


def test_the_share_of_a_slot_is_rounded_down() -> None:
    # 10 records over 4 slots: 2 in each, 8 in all.
    assert calculate_batch_sizes({"global_batch_size": 10}, 4, "T") == (2, 8)
    with pytest.raises(DetcloudError, match=r"is 3: T needs an integer of at least .* 4"):
        calculate_batch_sizes({"global_batch_size": 3}, 4, "T")


def test_yaml_has_the_numbers_of_a_configuration() -> None:
    assert safe_load_yaml_with_exceptions("a: 1e-5\nb: [1, x]") == {"a": 1e-5, "b": [1, "x"]}
    assert yaml_safe_dump({"b": 1, "a": [2]}) == "b: 1\na:\n- 2\n"


def test_an_object_of_a_bucket_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[OSError | bytes] = iter([OSError("busy"), b"content"])

    class Blob:
        def download_as_string(self) -> bytes:
            answer = next(answers)
            if isinstance(answer, OSError):
                raise answer
            return answer

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    random.seed(5)
    expected = random.random()
    random.seed(5)
    assert download_gcs_blob_with_backoff(Blob()) == b"content"
    # The waiting takes nothing from the generator that the trial's seed has set.
    assert random.random() == expected


@pytest.mark.parametrize("n_retries", [0, -1])
def test_download_without_attempts_is_refused(n_retries: int) -> None:
    with pytest.raises(DetcloudError, match=f"n_retries is {n_retries}, and must be at least 1"):
        download_gcs_blob_with_backoff(object(), n_retries)


def test_a_link_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").write_text("x")
    force_create_symlink(str(tmp_path / "new"), str(tmp_path / "old"))
    assert (tmp_path / "old").read_text() == "x"
