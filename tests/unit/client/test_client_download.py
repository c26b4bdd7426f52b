import hashlib
from pathlib import Path
from typing import Any, BinaryIO

from detcloud.client.download import ADDRESSES_SECONDS, download_files
from detcloud.client.records import CheckpointFile

CONTENT = b"weights"


class SlowStore:
    """Serves the addresses given last, and takes longer for a file than an address is good."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.given = 0

    def clock(self) -> float:
        return self.seconds

    def files(self) -> list[CheckpointFile]:
        self.given += 1
        digest = hashlib.sha256(CONTENT).hexdigest()
        return [
            {"path": path, "size": len(CONTENT), "sha256": digest, "url": f"{path}?{self.given}"}
            for path in ("a", "b", "c")
        ]

    def download(self, url: str, file: BinaryIO) -> Any:
        assert url.endswith(f"?{self.given}"), f"{url} has expired"
        self.seconds += ADDRESSES_SECONDS + 1
        return file.write(CONTENT)


def test_download_urls_are_renewed_before_expiry(tmp_path: Path) -> None:
    store = SlowStore()
    transport: Any = store
    download_files(
        transport,
        store.files(),
        tmp_path / "fetched",
        renew_addresses=store.files,
        clock=store.clock,
    )
    assert sorted(path.name for path in (tmp_path / "fetched").iterdir()) == ["a", "b", "c"]
    assert store.given == 3
