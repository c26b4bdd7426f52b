"""A blob store in memory that records the names of written blobs."""

from control_plane.searchers.blob_store import MemoryBlobStore


class RecordingBlobStore(MemoryBlobStore):
    """A blob store with `written`: the names of written blobs in the order of the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write(self, name: str, blob: bytes) -> None:
        super().write(name, blob)
        self.written.append(name)
