"""Both ends of a synchronised folder leave out the same paths as an upload does."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from detcloud.client.upload_filter import upload_filter
from detcloud.shared.errors import DetcloudError
from detcloud.shared.folder_sync.synced_names import SyncedNames

lines = st.lists(
    st.builds(
        "".join, st.lists(st.sampled_from(("a", "b", "/", "*", "**", "!", "?", ".", "[ab]")))
    ),
    max_size=5,
)
names = st.builds(
    lambda parts, end: "/".join(parts) + end,
    st.lists(st.sampled_from(("a", "b", "ab", "a.py", ".a")), min_size=1, max_size=4),
    st.sampled_from(("", "/")),
)


@given(lines, st.lists(names, min_size=1, max_size=20))
def test_rules_decide_as_an_upload(patterns: list[str], paths: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / ".detignore").write_text("\n".join(patterns))
        try:
            keep = upload_filter(Path(folder))
        except DetcloudError:
            return
        synced = SyncedNames(keep.rules())
        assert [synced(path) for path in paths] == [keep(path) for path in paths]
