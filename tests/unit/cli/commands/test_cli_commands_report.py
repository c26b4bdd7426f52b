"""`detcloud report`: texts from files, revisions and refusals."""

import io
import json
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "report.md"
    path.write_text("# Digits\n\n```chart\nkind: best\nexperiments: 7\n```\n")
    return path


def test_report_is_written_shown_changed_and_deleted(
    fake: FakeCluster, detcloud: Detcloud, text: Path
) -> None:
    created = detcloud("report", "create", "Digits", str(text), "--sharing", "read")
    assert created.out == "report 1 was created\n"
    shown = detcloud("report", "show", "1")
    assert shown.out == text.read_text()
    assert "`detcloud report edit 1 FILE --revision 1` replaces the text" in shown.err
    text.write_text("new\n")
    edited = detcloud("report", "edit", "1", str(text), "--revision", "1")
    assert edited.out == "report 1 has revision 2\n"
    assert detcloud("report", "edit", "1", "--title", "D", "--sharing", "edit").code == 0
    report = json.loads(detcloud("report", "describe", "1", "--json").out)
    assert (report["text"], report["title"], report["sharing"]) == ("new\n", "D", "edit")
    assert " D " in detcloud("report", "list").out
    assert detcloud("report", "rm", "1").out == "report 1 was deleted\n"
    assert detcloud("report", "show", "1").code == 3


def test_text_of_an_older_revision_replaces_nothing(
    fake: FakeCluster, detcloud: Detcloud, text: Path
) -> None:
    detcloud("report", "create", "Digits")
    detcloud("report", "edit", "1", "--title", "theirs")
    refused = detcloud("report", "edit", "1", str(text), "--revision", "1")
    assert refused.code == 3
    assert "ada changed report 1 in the meantime" in refused.err
    assert json.loads(detcloud("report", "show", "1", "--json").out)["text"] == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to change: expected FILE, --title or --sharing"),
        (("report.md",), "FILE needs --revision, the revision that the file was made from"),
    ],
)
def test_changes_without_a_base_are_refused(
    fake: FakeCluster, detcloud: Detcloud, words: tuple[str, ...], message: str
) -> None:
    refused = detcloud("report", "edit", "1", *words)
    assert (refused.code, refused.err.startswith(f"error: {message}\nhint: ")) == (2, True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a" * 65_537, "has more than 65536 bytes, the most of a report: shorten the text"),
        (b"ab\xff", "is not UTF-8: byte 2 is invalid"),
        (None, "could not be read: No such file or directory"),
    ],
)
def test_files_that_are_no_texts_are_refused(
    fake: FakeCluster, detcloud: Detcloud, tmp_path: Path, data: bytes | None, message: str
) -> None:
    path = tmp_path / "text"
    if data is not None:
        path.write_bytes(data)
    refused = detcloud("report", "create", "Digits", str(path))
    assert (refused.code, refused.err) == (1, f"error: {path} {message}\n")


def test_text_is_read_from_the_standard_input(
    fake: FakeCluster, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("ü".encode())))
    assert detcloud("report", "create", "Digits", "-").code == 0
    assert json.loads(detcloud("report", "show", "1", "--json").out)["text"] == "ü"
