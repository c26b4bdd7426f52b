"""Exports of the state database that the tick starts on demand on Google Cloud."""

from typing import Any

from lambdas.gcp.state_export import start_export

# 2026-11-29T20:03:30Z.
NOW_MS = 1_795_982_610_000
DATABASE = "projects/acme/databases/detcloud-vision"


def test_export_is_of_the_last_whole_minute() -> None:
    """Without a time, an export may have a row and lack another row of the same commit."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def post(url: str, body: dict[str, Any]) -> None:
        calls.append((url, body))

    folder = start_export(DATABASE, "copy", NOW_MS, post)
    assert folder == "gs://copy/20261129T200330Z"
    assert calls == [
        (
            f"https://firestore.googleapis.com/v1/{DATABASE}:exportDocuments",
            {"outputUriPrefix": folder, "snapshotTime": "2026-11-29T20:02:00Z"},
        )
    ]
