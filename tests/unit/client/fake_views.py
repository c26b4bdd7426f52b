"""Saved views of the fake cluster. Its user is ada."""

from tests.unit.client.fake_refusal import Item, Refusal, page


class FakeViews:
    def __init__(self) -> None:
        self.views: list[Item] = []

    def get(self, path: str, query: Item) -> Item | None:
        """Answer a list of views; return None for other paths."""
        if path != "/experiment-views":
            return None
        workspace = query.get("workspace")
        return page([one for one in self.views if workspace in (None, one["workspace"])], query)

    def put(self, path: str, body: Item) -> Item | None:
        """Save a view of ada; return None for other paths."""
        if not path.startswith("/experiment-views/"):
            return None
        if body["filter"] == "bad":
            raise Refusal(422, "invalid", "filter: character 1: 'bad' is not valid")
        return self.add(path.rpartition("/")[2], "ada", **{"workspace": "", **body})

    def delete(self, path: str, query: Item) -> Item | None:
        """Delete a view; return None for other paths."""
        if not path.startswith("/experiment-views/"):
            return None
        found = (path.rpartition("/")[2], query["user"])
        view = next(one for one in self.views if (one["name"], one["user"]) == found)
        self.views.remove(view)
        return view

    def add(self, name: str, user: str, **content: object) -> Item:
        view: Item = {
            "name": name,
            "user": user,
            "shared": False,
            "filter": "",
            "columns": [],
            "sort": "id",
            "order": "desc",
            "group": "",
            "created_ms": 1_000,
            "updated_ms": 2_000,
            "workspace": "",
            **content,
        }
        self.views.append(view)
        return view
