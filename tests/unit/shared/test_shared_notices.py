from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.shared.notices import FileNotices


@pytest.mark.parametrize("content", ["", "[]", '{"deadline_ms": "soon"}', '{"deadline'])
def test_missing_or_malformed_notice_file_is_no_notice(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notice.json"
    assert FileNotices(path).poll() is None
    path.write_text(content)
    assert FileNotices(path).poll() is None
