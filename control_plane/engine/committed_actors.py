"""Reads of committed actors: states and parts, without the mail that is not folded yet."""

from collections.abc import Sequence
from typing import Any

from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.fold import ActorSnapshot
from control_plane.engine.head import HEAD, PARTS
from control_plane.engine.mailbox import MAIL, MAIL_END
from control_plane.engine.reader import ActorCache, decode_snapshot
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import GET_MAX, Key, Row, StateTable


class CommittedActors:
    """A reader of the committed actors of a state table. Threads may share a reader.

    Decoded heads are cached by revision.
    """

    def __init__(self, table: StateTable) -> None:
        self.table = table
        self._cache = ActorCache()

    def has_mail(self, address: str) -> bool:
        """Return whether the actor has mail. Timers do not count.

        Reads at most one row. Raises TableError.
        """
        return bool(self.table.query(address, MAIL, MAIL_END, limit=1).rows)

    def read_state(self, address: str) -> Any:
        """Read the actor's state. Return None if the actor does not exist.

        The state does not include mail that is not folded yet. Raises TableError if the read fails,
        ValueError for a head that cannot be decoded, and KeyError for an unknown type of actor.
        """
        row = self.table.get(Key(address, HEAD))
        return None if row is None else self._decode_head_row(address, row).state

    def read_states(self, addresses: Sequence[str]) -> list[Any]:
        """Read the states of actors, in the order of `addresses`. The entry of a missing actor is
        None.

        Raises TableError if the read fails, ValueError for a head that cannot be decoded, and
        KeyError for an unknown type of actor.
        """
        return self.read_states_and_rows(addresses, ())[0]

    def read_states_and_rows(
        self, addresses: Sequence[str], keys: Sequence[Key]
    ) -> tuple[list[Any], list[Row | None]]:
        """Read the states of actors and other rows in common batches.

        Return the states in the order of `addresses` and the rows in the order of `keys`. The entry
        of a missing actor or row is None. The rows may be from different moments. Raises TableError
        if the read fails, ValueError for a head that cannot be decoded, and KeyError for an unknown
        type of actor.
        """
        rows = self._read_rows([*(Key(address, HEAD) for address in addresses), *keys])
        states = [
            None if row is None else self._decode_head_row(address, row).state
            for address, row in zip(addresses, rows, strict=False)
        ]
        return states, rows[len(addresses) :]

    def _decode_head_row(self, address: str, row: Row) -> ActorSnapshot:
        """Decode a head row into an actor. Cache the actor unless this or a later revision is
        cached.

        Raises ValueError for an invalid row, and KeyError for an unknown type of actor.
        """
        snapshot = decode_snapshot(self._cache, address, row)[0]
        self._cache.put_if_newer(snapshot)
        return snapshot

    def read_part(self, address: str, name: str) -> Any:
        """Read and decode a part of the actor, a row of the larger state. Return None if the part
        does not exist.

        The part may be newer than a state that was read earlier. Raises TableError if the read
        fails, and KeyError for an unknown type of actor. Raises ValueError for a part that cannot
        be decoded, unless the actor type has a replacement (`ActorType.damaged_parts`).
        """
        row = self.table.get(Key(address, PARTS + name))
        return None if row is None else actor_type_at(address).decode_part(name, row.body)

    def read_parts(self, places: Sequence[tuple[str, str]]) -> list[Any]:
        """Read and decode parts of several actors, in the order of `places`. The entry of a missing
        part is None.

        Raises TableError if the read fails, and KeyError for an unknown type of actor. Raises
        ValueError for a part that cannot be decoded, unless the actor type has a replacement.

        Args:
            places: the address of the actor and the name of the part, for each part.
        """
        rows = self._read_rows([Key(address, PARTS + name) for address, name in places])
        return [
            None if row is None else actor_type_at(address).decode_part(name, row.body)
            for (address, name), row in zip(places, rows, strict=True)
        ]

    def read_part_rows(self, address: str, family: str) -> list[Row]:
        """Read the stored rows of the part named `family` and of all parts below `family/`, by sort
        key.

        Return an empty list if none of the parts exists. The bodies are not decoded. Raises
        TableError.
        """
        return [*read_rows(self.table, address, f"{PARTS}{family}", f"{PARTS}{family}/~")]

    def _read_rows(self, keys: Sequence[Key]) -> list[Row | None]:
        """Read rows in batches of GET_MAX, in the order of `keys`. The entry of a missing row is
        None.

        Raises TableError.
        """
        rows: list[Row | None] = []
        for start in range(0, len(keys), GET_MAX):
            rows += self.table.get_many(keys[start : start + GET_MAX])
        return rows
