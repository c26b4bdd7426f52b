"""Files that the server stores in a folder: whole, once, and with nothing beside them."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control_plane.checkpoint_stores.folder_uploads import store_file

KILLED = """
import os, shutil, sys
from pathlib import Path
from control_plane.checkpoint_stores.folder_uploads import store_file

def write_half(reader, writer, block_bytes):
    writer.write(reader.read(2))
    writer.flush()
    os._exit(9)

shutil.copyfileobj = write_half
store_file(Path(sys.argv[1]), "3/4/weights", Path(sys.argv[2]))
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
    return sorted(it.relative_to(root).as_posix() for it in root.rglob("*") if it.is_file())


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
