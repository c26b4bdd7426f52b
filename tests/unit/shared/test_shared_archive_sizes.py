"""Descriptions of a folder's largest files and folders."""

from detcloud.shared.archive_sizes import describe_fullest, describe_largest

MIB = 2**20


def test_a_folder_of_many_small_files_is_named_with_the_total_size() -> None:
    files = [(f".venv/lib/f{number}", MIB // 10) for number in range(1000)]
    # 1,000 times a tenth of 1 MiB, rounded down, are 100.0 MiB; a file has 0.1 % of the total.
    assert describe_largest([*files, ("train.py", 0)]) == (
        "the largest folders are .venv/ (100.0 MiB)"
    )


def test_a_subfolder_is_named_if_its_share_differs_from_the_parent() -> None:
    files = [("data/raw/a", 60 * MIB), ("data/small/b", 40 * MIB), ("x.py", 1)]
    assert describe_largest(files) == (
        "the largest folders are data/ (100.0 MiB), data/raw/ (60.0 MiB), data/small/ (40.0 MiB); "
        "the largest files are data/raw/a (60.0 MiB), data/small/b (40.0 MiB)"
    )


def test_top_level_files_are_named_without_a_folder() -> None:
    assert describe_largest([("a", 2 * MIB)]) == "the largest files are a (2.0 MiB)"
    assert describe_fullest(["a", "b"]) == ""


def test_folders_with_the_most_files_are_named_once() -> None:
    names = [f"node_modules/pkg/f{number}" for number in range(1200)] + ["src/a"]
    assert describe_fullest(names) == (
        "the folders with most of them are node_modules/ (1,200), src/ (1)"
    )
