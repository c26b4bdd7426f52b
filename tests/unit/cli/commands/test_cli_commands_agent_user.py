"""`detcloud user` and `workspace` link with users of the machines."""

from argparse import ArgumentParser
from typing import Any

import pytest

from detcloud.cli.commands import agent_user
from detcloud.cli.commands.agent_user import HANDLERS


class FakeClient:
    """A client that records the requests."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def put(self, path: str, body: object) -> None:
        self.requests.append((path, body))

    def delete(self, path: str, **query: object) -> None:
        self.requests.append((path, query))


def run(monkeypatch: pytest.MonkeyPatch, command: str, *words: str) -> list[Any]:
    """Run a command with these words, and return the requests."""
    client = FakeClient()
    monkeypatch.setattr(agent_user, "connect", lambda _: client)
    handler = HANDLERS[command]
    parser = ArgumentParser()
    handler.add_arguments(parser)
    assert handler.run(parser.parse_args(words)) == 0
    return client.requests


def test_user_is_linked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("ada", "--agent-uid", "5", "--agent-user", "ada", "--agent-gid", "6")
    (request,) = run(monkeypatch, "user link-with-agent-user", *words, "--agent-group", "lab")
    ids = {"uid": 5, "gid": 6, "user": "ada", "group": "lab"}
    assert request == ("/agent-users", {"kind": "user", "name": "ada", **ids})
    assert "uid 5 and gid 6" in capsys.readouterr().out


def test_user_needs_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "user link-with-agent-user", "ada", "--agent-uid", "5")


def test_workspace_may_have_a_group_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("vision", "--agent-gid", "6")
    ((_, body),) = run(monkeypatch, "workspace link-with-agent-user", *words)
    assert (body["kind"], body["uid"], body["gid"]) == ("workspace", None, 6)
    assert "run as gid 6 from" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["user", "workspace"])
def test_link_is_removed(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    (request,) = run(monkeypatch, f"{kind} unlink-agent-user", "a b")
    assert request == ("/agent-users", {"kind": kind, "name": "a b"})
