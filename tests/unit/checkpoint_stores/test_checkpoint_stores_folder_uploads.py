"""Files that the server stores in a folder: complete, only once, and without leftovers."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control_plane.checkpoint_stores.folder_files import FolderFiles
from control_plane.checkpoint_stores.folder_uploads import store_file
from detcloud.storage.types.directory import DirectoryStore
from tests.unit.core.full_disk import files_of_at_most

UUID = "00000000-0000-4000-8000-000000000001"
NO_UNNAMED_FILES = """
import errno, os
open_file = os.open

def refuse_unnamed(path, flags, *rest, **named):
    if flags & os.O_TMPFILE == os.O_TMPFILE:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")
    return open_file(path, flags, *rest, **named)

os.open = refuse_unnamed
"""
KILLED = f"""
import os, shutil, sys
from pathlib import Path
from control_plane.checkpoint_stores.folder_uploads import store_file

def write_half(reader, writer, block_bytes):
    writer.write(reader.read(2))
    writer.flush()
    os._exit(9)

shutil.copyfileobj = write_half
store_file(Path(sys.argv[1]), "3/4/0/{UUID}/weights", Path(sys.argv[2]))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"abc")
    return path


@pytest.fixture(params=["unnamed files", "named files"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store on a file system with unnamed files, and a store on a file system without."""
    if request.param == "named files":
        open_file = os.open

        def refuse_unnamed(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return open_file(path, flags, *rest, **named)

        monkeypatch.setattr(os, "open", refuse_unnamed)
    return tmp_path / "store"


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_file_is_stored_once_without_leftovers(root: Path, source: Path) -> None:
    # The mode of the file must not depend on the umask of the test run.
    before = os.umask(0o022)
    try:
        assert store_file(root, "3/4/weights", source)
    finally:
        os.umask(before)
    source.write_bytes(b"other")
    assert not store_file(root, "3/4/weights", source)
    assert files_below(root) == ["3/4/weights"]
    assert (root / "3/4/weights").read_bytes() == b"abc"
    assert (root / "3/4/weights").stat().st_mode & 0o777 == 0o644


def test_failed_write_leaves_no_file(root: Path, source: Path) -> None:
    with files_of_at_most(0), pytest.raises(OSError, match="File too large"):
        store_file(root, "3/4/weights", source)
    assert files_below(root) == []


def test_killed_server_leaves_no_unnamed_file(tmp_path: Path, source: Path) -> None:
    """The system removes an unnamed file with the process that has the file open."""
    root = tmp_path / "store"
    command = [sys.executable, "-c", KILLED, str(root), str(source)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, check=False)
    assert done.returncode == 9
    assert files_below(root) == []
    assert store_file(root, "3/4/weights", source)


@pytest.mark.parametrize("name", [".detcloud-upload-notes", ".put-1", ".staging/weights"])
def test_files_may_have_names_of_internal_files(root: Path, source: Path, name: str) -> None:
    path = f"3/4/0/{UUID}/{name}"
    assert store_file(root, path, source)
    assert files_below(root) == [path]
    listed = FolderFiles(root).list_files(("3", "4", "0", UUID))
    assert list(listed) == [(name, 3)]
    fetched = source.with_name("fetched")
    DirectoryStore(root).get(path, fetched)
    assert fetched.read_bytes() == b"abc"


def test_unfinished_write_is_removed_with_the_checkpoint(tmp_path: Path, source: Path) -> None:
    """Without unnamed files, a killed server leaves a file."""
    root = tmp_path / "store"
    command = [sys.executable, "-c", NO_UNNAMED_FILES + KILLED, str(root), str(source)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, check=False)
    assert done.returncode == 9
    assert len(files_below(root)) == 1
    assert list(FolderFiles(root).list_files(("3", "4", "0", UUID))) == []
    list(FolderFiles(root).remove_folder(("3", "4", "0", UUID), prune=True))
    assert files_below(root) == []
