"""Versions of the agent: installation from an archive, choice and removal."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
from pathlib import Path

import pytest

from detcloud.agent.machine.server_access import unpack
from detcloud.agent.machine.versions import (
    VersionFailed,
    choose_version,
    current_version,
    delete_old_versions,
    install_version,
    read_digest,
)


def archive(files: dict[str, str], kind: bytes = tarfile.REGTYPE) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.type = len(text), kind
            opened.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


PACKAGES = ("detcloud/__init__.py", "detcloud/agent/__init__.py")
WORKING = archive(dict.fromkeys((*PACKAGES, "detcloud/agent/__main__.py"), ""))
BROKEN = archive({**dict.fromkeys(PACKAGES, ""), "detcloud/agent/__main__.py": "import nothing"})


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_version_is_installed_once(tmp_path: Path) -> None:
    digest = digest_of(WORKING)
    name = install_version(tmp_path, "1", digest, WORKING, sys.executable)
    assert name == f"1-{digest[:12]}"
    assert read_digest(tmp_path / name) == digest
    # The archive is not read again.
    assert install_version(tmp_path, "1", digest, b"", "no-python") == name


def test_incomplete_version_is_installed_again(tmp_path: Path) -> None:
    digest = digest_of(WORKING)
    (tmp_path / f"1-{digest[:12]}/lib").mkdir(parents=True)
    name = install_version(tmp_path, "1", digest, WORKING, sys.executable)
    assert read_digest(tmp_path / name) == digest


@pytest.mark.parametrize(
    ("content", "digest", "python", "text"),
    [
        (WORKING, "0" * 64, sys.executable, "damaged"),
        (BROKEN, digest_of(BROKEN), sys.executable, "does not start: ModuleNotFoundError"),
        (WORKING, digest_of(WORKING), "/no/python", "does not work"),
    ],
    # The digests differ between processes.
    ids=["damaged", "without-code", "without-python"],
)
def test_unusable_version_is_refused(
    tmp_path: Path, content: bytes, digest: str, python: str, text: str
) -> None:
    with pytest.raises(VersionFailed, match=text):
        install_version(tmp_path, "1", digest, content, python)
    assert current_version(tmp_path) == ""


@pytest.mark.parametrize("name", ["../outside", "/absolute", "a//b"])
def test_names_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="unexpected entry"):
        unpack(archive({name: "x"}), str(tmp_path / "folder"))


def test_links_and_damaged_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unexpected entry"):
        unpack(archive({"link": ""}, tarfile.SYMTYPE), str(tmp_path))
    with pytest.raises(ValueError, match="damaged"):
        unpack(b"nothing", str(tmp_path))


def test_only_two_versions_are_kept(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        assert choose_version(tmp_path, name)
    assert not choose_version(tmp_path, "three")
    assert delete_old_versions(tmp_path) == ["one"]
    assert current_version(tmp_path) == "three"
