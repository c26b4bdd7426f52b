"""Refusals and pages in the format of docs/api.md."""

from typing import Any

Item = dict[str, Any]


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str, details: list[Item] | None = None):
        self.status = status
        self.body = {"error": {"code": code, "message": message, "details": details or []}}


def page(items: list[Item], query: Item) -> Item:
    start = int(query.get("cursor", 0))
    end = start + int(query.get("limit", 100))
    return {"items": items[start:end], "next_cursor": str(end) if end < len(items) else None}
