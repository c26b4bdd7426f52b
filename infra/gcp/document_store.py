"""The documents of a database of Firestore, for a copy of all rows."""

import base64
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final, get_args
from urllib.parse import quote

from control_plane.gcp.row_documents import COLLECTION, document_path, to_key
from control_plane.rows.row_type import Function
from control_plane.state.table import Key
from infra.gcp.google_api import GoogleApi
from infra.gcp.stores import FIRESTORE
from infra.restoration import show_time
from infra.row_copy import StoredItem

# A commit has at most 10 MiB, and a row 400 KB, in base64 a third more.
BATCH_ITEMS: Final = 15
PAGE_DOCUMENTS: Final = 300
# The parents of the collections that contain rows, relative to the database's documents.
PARENTS: Final = ("", *(f"triggers/{function}/" for function in get_args(Function)))


class DatabaseDocuments:
    """All rows of a database, by default at present.

    `path` is projects/PROJECT/databases/DATABASE. With `moment`, a whole minute, the rows of this
    moment are read. Every method raises GoogleError.
    """

    batch_items = BATCH_ITEMS

    def __init__(
        self, api: GoogleApi, path: str, moment: datetime | None = None, root: str = FIRESTORE
    ) -> None:
        self._api = api
        self._documents = f"{path}/documents"
        self._root = root
        self._moment = moment

    def read(self) -> Iterator[StoredItem]:
        """Yield all rows, each once."""
        at = f"&readTime={quote(show_time(self._moment))}" if self._moment else ""
        for parent in PARENTS:
            url = f"{self._root}/{self._documents}/{parent}{COLLECTION}?pageSize={PAGE_DOCUMENTS}"
            token = ""
            while True:
                page = self._api.call("GET", f"{url}{at}{token}")
                yield from map(to_stored_item, page.get("documents", ()))
                if not page.get("nextPageToken"):
                    break
                token = f"&pageToken={quote(page['nextPageToken'], safe='')}"

    def write(self, items: Sequence[StoredItem]) -> None:
        """Write at most BATCH_ITEMS rows atomically."""
        self._commit(
            [{"update": {"name": self._name(item.key), "fields": item.content}} for item in items]
        )

    def delete(self, keys: Sequence[Key]) -> None:
        """Delete at most BATCH_ITEMS rows atomically."""
        self._commit([{"delete": self._name(key)} for key in keys])

    def _commit(self, writes: list[dict[str, Any]]) -> None:
        self._api.call("POST", f"{self._root}/{self._documents}:commit", {"writes": writes})

    def _name(self, key: Key) -> str:
        return f"{self._documents}/{document_path(key)}"


def to_stored_item(document: Any) -> StoredItem:
    """Return a document in the form of the copy: the key and the fields."""
    return StoredItem(to_key(document), document["fields"])


def counter_value(item: StoredItem) -> int:
    """Return the next id of an item that is a counter."""
    return int(base64.b64decode(item.content["b"]["bytesValue"]))
