"""Files of a model folder that are uploaded."""

from pathlib import Path

import pytest

from detcloud import DetcloudError
from detcloud.client.upload_filter import upload_filter
from detcloud.shared.archive import extract, pack


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


def test_some_names_are_always_ignored(model_dir: Path, tmp_path: Path) -> None:
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


def test_an_unreadable_list_is_a_clear_error(model_dir: Path) -> None:
    (model_dir / ".detignore").write_bytes(b"\xff\xfe")
    with pytest.raises(DetcloudError, match=r"\.detignore could not be read"):
        upload_filter(model_dir)
