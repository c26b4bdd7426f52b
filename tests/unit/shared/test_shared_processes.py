from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.shared import processes


def test_reads_a_process_with_an_undecodable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Linux cuts names after 15 bytes, maybe within a character.
    entry = tmp_path / "7"
    entry.mkdir()
    numbers = " ".join(str(number) for number in range(5, 23))
    (entry / "stat").write_bytes(b"7 (fourteen bytes\xc3) S 3 " + numbers.encode())
    (entry / "cmdline").write_bytes(b"fourteen bytes\xc3\xa4\0--quiet\0")
    monkeypatch.setattr(processes, "PROC", tmp_path)
    found = processes.Process(7, 3, 22, "fourteen bytesä --quiet")
    assert processes.read_process(7) == found
    assert processes.list_descendants(3) == [found]
