"""Parts in memory that remember what was written."""

from control_plane.searchers.parts import PartsInMemory


class Kept(PartsInMemory):
    """`written` are the names in the order of the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def write(self, name: str, piece: bytes) -> None:
        super().write(name, piece)
        self.written.append(name)
