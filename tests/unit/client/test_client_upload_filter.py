"""Files of a model folder that are uploaded."""

import warnings
from pathlib import Path

import pytest

from detcloud import DetcloudError
from detcloud.client.upload import pack_model_code
from detcloud.client.upload_filter import upload_filter
from detcloud.shared.archive import extract, pack
from detcloud.shared.errors import LeftOutWarning


def uploaded_names(root: Path, tmp_path: Path) -> list[str]:
    out = tmp_path / "uploaded"
    with pack(root, upload_filter(root)) as archive:
        extract(archive.path, out)
    return sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())


def make_files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_fixed_names_are_never_uploaded(model_dir: Path, tmp_path: Path) -> None:
    make_files(
        model_dir,
        "__pycache__/a.cpython-311.pyc",
        "sub/__pycache__/x.txt",
        "a.pyc",
        "b.pyo",
        "c$py.class",
        "terraform.tfstate",
        "sub/terraform/main.tf",
        "sub/.terraform/providers",
        ".git/config",
        ".vscode/settings.json",
        ".idea/x",
        ".mypy_cache/x",
        "shared_fs/data",
        "sub/shared_fs",
        ".gitignore",
    )
    assert uploaded_names(model_dir, tmp_path) == [".gitignore", "model_def.py", "sub/shared_fs"]


def test_detignore_has_gitignore_syntax(model_dir: Path, tmp_path: Path) -> None:
    make_files(
        model_dir, "data/a.bin", "data/keep.txt", "sub/a.bin", "top.bin", "deep/x/y/z.log", "b c"
    )
    (model_dir / ".detignore").write_text(
        "# data\n*.bin\n!/top.bin\ndeep/**/z.log\n/b\\ c\n!__pycache__/\n"
    )
    make_files(model_dir, "__pycache__/x.pyc", "sub/.detignore")
    assert uploaded_names(model_dir, tmp_path) == [
        "data/keep.txt",
        "model_def.py",
        "sub/.detignore",
        "top.bin",
    ]


def test_an_ignored_folder_is_not_entered(model_dir: Path) -> None:
    make_files(model_dir, "data/keep.txt")
    (model_dir / "data" / "away").symlink_to("/etc")
    (model_dir / ".detignore").write_text("data/\n!data/keep.txt\n")
    with pack(model_dir, upload_filter(model_dir)) as archive:
        assert archive.files == 1


def test_detignore_may_have_a_byte_order_mark_and_crlf(model_dir: Path) -> None:
    (model_dir / ".detignore").write_bytes(b"\xef\xbb\xbfbig.bin\r\nother.bin\r\n")
    keep = upload_filter(model_dir)
    assert [name for name in ("big.bin", "other.bin", "third.bin") if keep(name)] == ["third.bin"]


def test_undecodable_detignore_is_an_error(model_dir: Path) -> None:
    (model_dir / ".detignore").write_bytes(b"\xff\xfe")
    with pytest.raises(DetcloudError, match=r"\.detignore could not be read: byte 0 is not UTF-8"):
        upload_filter(model_dir)


@pytest.mark.parametrize("pattern", ["!", "\\", "a\\", "[z-a]", "[[:alpha:]]"])
def test_an_invalid_pattern_is_refused_with_its_line(model_dir: Path, pattern: str) -> None:
    (model_dir / ".detignore").write_text(f"# [:alpha:]\n*.bin\n{pattern}\n")
    with pytest.raises(DetcloudError, match=r"\.detignore:3: .* is not a pattern: "):
        upload_filter(model_dir)


@pytest.mark.parametrize("pattern", ["[", "[]", "[[a]x", "/", "a/**b", ""])
def test_odd_patterns_of_git_are_accepted(model_dir: Path, pattern: str) -> None:
    (model_dir / ".detignore").write_text(f"{pattern}\n")
    assert upload_filter(model_dir)("train.py")


def test_files_excluded_by_a_fixed_rule_have_a_warning(model_dir: Path) -> None:
    make_files(model_dir, "terraform_utils.py", "shared_fs/x", "sub/.terraform.lock", "a.pyc")
    message = r"not uploaded: shared_fs/, sub/\.terraform\.lock, terraform_utils\.py; names like"
    with pytest.warns(LeftOutWarning, match=message), pack_model_code(model_dir):
        pass
    (model_dir / ".detignore").write_text("terraform*\n.terraform*\n/shared_fs\n")
    with warnings.catch_warnings(), pack_model_code(model_dir):
        warnings.simplefilter("error")


def test_error_for_oversized_includes_names_the_largest_files(
    model_dir: Path, tmp_path: Path
) -> None:
    include = tmp_path / "data"
    include.mkdir()
    with (include / "big.bin").open("wb") as file:
        file.truncate(96 << 20)
    with pytest.raises(DetcloudError, match=rf"{include}.*the largest files are big\.bin"):
        pack_model_code(model_dir, [include])
