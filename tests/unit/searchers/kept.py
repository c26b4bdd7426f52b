"""Parts in memory that remember what was written."""


class Kept:
    """See Parts; `written` are the names in the order of the writes."""

    def __init__(self) -> None:
        self.pieces: dict[str, bytes] = {}
        self.written: list[str] = []

    def read(self, name: str) -> bytes | None:
        return self.pieces.get(name)

    def write(self, name: str, piece: bytes) -> None:
        self.pieces[name] = piece
        self.written.append(name)
