"""Agents, templates, reports and tokens of the fake cluster."""

import re

from tests.unit.client.fake_refusal import Item, Refusal, page
from tests.unit.client.fake_reports import FakeReports


class FakeMachines:
    def __init__(self) -> None:
        self.agents = [fake_agent("a-1", "laptop"), fake_agent("a-2", "tower")]
        self.templates: dict[str, Item] = {}
        self.tokens: list[Item] = []
        self.reports = FakeReports()

    def get(self, path: str, query: Item) -> Item:
        if path.startswith("/reports"):
            return self.reports.get(path, query)
        if path == "/agents":
            return page(self.agents, query)
        if path == "/templates":
            return page(list(self.templates.values()), query)
        if path == "/tokens":
            return page(self.tokens, query)
        if found := re.fullmatch(r"/templates/([A-Za-z0-9._-]{1,64})", path):
            return self._template(found[1])
        raise Refusal(404, "not_found", f"there is no {path}")

    def put(self, path: str, body: Item) -> Item:
        if path.startswith("/reports/"):
            return self.reports.put(path, body)
        name = path.removeprefix("/templates/")
        if body["config"].startswith("bad"):
            detail = {"path": "bad", "line": 1, "message": "unknown field"}
            raise Refusal(422, "invalid", "the template has problems", [detail])
        known = self.templates.get(name, {"created_ms": 1000})
        self.templates[name] = {
            **known,
            "name": name,
            "config": body["config"],
            "updated_ms": 2000,
            "user": "ada",
        }
        return self.templates[name]

    def post(self, path: str, body: Item) -> Item:
        if path == "/reports":
            return self.reports.post(body)
        if path == "/tokens":
            assert body.keys() <= {"user", "role", "resource_pool", "description", "expires_days"}
            entry = {
                "id": len(self.tokens) + 1,
                "user": body.get("user", "ada"),
                "role": body.get("role", "user"),
                "resource_pool": body.get("resource_pool"),
                "description": body.get("description"),
                "created_ms": 0,
                # 86,400,000 ms are a day.
                "expires_ms": body["expires_days"] * 86_400_000 if "expires_days" in body else None,
                "revoked": False,
            }
            self.tokens.append(entry)
            return {**entry, "token": "secret-of-the-token"}
        if found := re.fullmatch(r"/agents/([^/]+)/(enable|disable)", path):
            agent = self._agent(found[1])
            agent["enabled"] = found[2] == "enable"
            agent["draining"] = bool(body.get("drain"))
            return agent
        if found := re.fullmatch(r"/agents/([^/]+)/slots/(\d+)/(enable|disable)", path):
            agent = self._agent(found[1])
            agent["slots"][int(found[2])]["enabled"] = found[3] == "enable"
            return agent
        raise Refusal(404, "not_found", f"there is no {path}")

    def delete(self, path: str) -> Item:
        kind, name = path.strip("/").split("/")
        if kind == "reports":
            return self.reports.delete(path)
        if kind == "templates":
            self._template(name)
            return self.templates.pop(name)
        token = next(token for token in self.tokens if token["id"] == int(name))
        token["revoked"] = True
        return token

    def _template(self, name: str) -> Item:
        if name not in self.templates:
            raise Refusal(404, "not_found", f"there is no template {name}")
        return self.templates[name]

    def _agent(self, name: str) -> Item:
        return next(agent for agent in self.agents if agent["id"] == name)


def fake_agent(id: str, name: str) -> Item:
    slots = [
        {"id": n, "type": "cpu", "uuid": "u", "name": "cpu", "allocation": None, "enabled": True}
        for n in range(2)
    ]
    return {
        "id": id,
        "name": name,
        "resource_pool": "default",
        "label": "",
        "state": "ALIVE",
        "enabled": True,
        "draining": False,
        "slots": slots,
        "version": "0.1.0",
        "enrolled_ms": 0,
    }
