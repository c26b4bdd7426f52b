"""Files that the server stores in a folder: whole, once, and with nothing beside them."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control_plane.checkpoint_stores.folder_files import FolderFiles
from control_plane.checkpoint_stores.folder_uploads import store_file
from detcloud.storage.types.directory import DirectoryStore

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


@pytest.fixture(params=["unnamed files", "none of them"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store on a file system with unnamed files, and one on another."""
    if request.param == "none of them":
        open_file = os.open

        def refuse_unnamed(path: Any, flags: int, *rest: Any, **named: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return open_file(path, flags, *rest, **named)

        monkeypatch.setattr(os, "open", refuse_unnamed)
    return tmp_path / "store"


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def test_a_file_is_stored_once_and_alone(root: Path, source: Path) -> None:
    # The umask of whoever runs the tests may be any.
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


def test_a_write_that_fails_leaves_nothing(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    with pytest.raises(OSError, match="No space left"):
        store_file(root, "3/4/weights", source)
    assert files_below(root) == []


def test_a_server_that_is_killed_leaves_nothing(tmp_path: Path, source: Path) -> None:
    """A file without a name is gone with the process that has it open."""
    root = tmp_path / "store"
    command = [sys.executable, "-c", KILLED, str(root), str(source)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, check=False)
    assert done.returncode == 9
    assert files_below(root) == []
    assert store_file(root, "3/4/weights", source)


@pytest.mark.parametrize("name", [".detcloud-upload-notes", ".put-1", ".staging/weights"])
def test_a_file_may_be_called_as_the_servers_own_are(root: Path, source: Path, name: str) -> None:
    path = f"3/4/0/{UUID}/{name}"
    assert store_file(root, path, source)
    assert files_below(root) == [path]
    listed = FolderFiles(root).list_files(("3", "4", "0", UUID))
    assert list(listed) == [(name, 3)]
    fetched = source.with_name("fetched")
    DirectoryStore(root).get(path, fetched)
    assert fetched.read_bytes() == b"abc"


def test_an_unfinished_write_goes_with_its_checkpoint(tmp_path: Path, source: Path) -> None:
    """A server that is killed leaves a file if none can be without a name."""
    root = tmp_path / "store"
    command = [sys.executable, "-c", NO_UNNAMED_FILES + KILLED, str(root), str(source)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, check=False)
    assert done.returncode == 9
    assert len(files_below(root)) == 1
    assert list(FolderFiles(root).list_files(("3", "4", "0", UUID))) == []
    list(FolderFiles(root).remove_folder(("3", "4", "0", UUID), prune=True))
    assert files_below(root) == []
