"""Agents, slots, templates, tokens and the server's own log."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import detcloud as package
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import TOKEN, FakeCluster


def test_agents_are_disabled_and_enabled(fake: FakeCluster, detcloud: Detcloud) -> None:
    assert detcloud("agent", "disable", "laptop", "--drain").out == "agent a-1 is draining\n"
    assert " draining |" in detcloud("agent", "list").out
    assert detcloud("a", "disable", "--all").out == "agent a-1 is disabled\nagent a-2 is disabled\n"
    assert detcloud("agent", "enable", "a-1").out == "agent a-1 is enabled\n"
    fake.machines.agents[1]["state"] = "LOST"
    assert detcloud("agent", "enable", "--all").out == "agent a-1 is enabled\n"
    assert json.loads(detcloud("a", "enable", "a-1", "--json").out)[0]["enabled"] is True
    unknown = detcloud("agent", "enable", "x")
    assert (unknown.code, unknown.err) == (1, "error: there is no agent x; there is a-1, a-2\n")
    assert detcloud("agent", "enable").code == 2
    assert detcloud("agent", "enable", "a-1", "--all").code == 2
    described = detcloud("agent", "describe", "laptop").out
    assert "Resource pool  default\n" in described
    assert described.count(" cpu ") == 4, "a type and a name for each of two slots"


def test_slots_are_disabled_and_enabled(fake: FakeCluster, detcloud: Detcloud) -> None:
    assert detcloud("slot", "disable", "a-1", "1").out == "slot 1 of agent a-1 is disabled\n"
    listed = json.loads(detcloud("slot", "list", "--json").out)
    assert [(item["agent_id"], item["id"], item["enabled"]) for item in listed] == [
        ("a-1", 0, True),
        ("a-1", 1, False),
        ("a-2", 0, True),
        ("a-2", 1, True),
    ]
    assert len(detcloud("s", "ls", "--agent", "a-1", "--csv").out.splitlines()) == 3
    assert detcloud("slot", "enable", "a-1", "1").out == "slot 1 of agent a-1 is enabled\n"
    unknown = detcloud("slot", "enable", "a-1", "9")
    assert unknown.err == "error: agent a-1 has no slot 9; its slots: 0, 1\n"


def test_templates_are_stored_shown_and_removed(
    fake: FakeCluster, detcloud: Detcloud, config: Path, tmp_path: Path
) -> None:
    assert detcloud("template", "create", "small", str(config)).out == "template small was set\n"
    again = detcloud("tpl", "create", "small", str(config))
    assert (again.code, again.err) == (
        1,
        "error: template small exists; `detcloud template set` replaces it\n",
    )
    assert detcloud("tpl", "set", "small", str(config)).code == 0
    assert detcloud("template", "describe", "small").out == config.read_text()
    assert " small | ada " in detcloud("template", "list").out
    assert "name: digits" in detcloud("tpl", "ls", "-d").out
    document = yaml.safe_load(detcloud("template", "list", "--yaml").out)
    assert document[0]["config"] == config.read_text()
    assert detcloud("template", "rm", "small").out == "template small was removed\n"
    assert detcloud("template", "describe", "small").code == 3
    (tmp_path / "bad.yaml").write_text("bad: 1\n")
    refused = detcloud("template", "set", "x", str(tmp_path / "bad.yaml"))
    assert refused.code == 3
    assert f"{tmp_path / 'bad.yaml'}:1: bad: unknown field" in refused.err
    missing = detcloud("template", "set", "x", "none.yaml")
    assert (missing.code, missing.err.startswith("error: none.yaml could not be read")) == (1, True)


def test_tokens_are_created_shown_once_and_revoked(fake: FakeCluster, detcloud: Detcloud) -> None:
    made = detcloud("token", "create", "bob", "-d", "ci", "--expiration-days", "3")
    assert made.out == "secret-of-the-token\n"
    assert made.err == "token 1 of bob; store it safely: it is shown only once\n"
    listed = detcloud("token", "list")
    assert "  1 | bob  | user | N/A           | ci " in listed.out
    # Three days after the epoch.
    assert "1970-01-04 00:00:00+0000" in listed.out
    assert "secret" not in listed.out
    detcloud("token", "create", "--role", "admin", "--json")
    assert [load["id"] for load in json.loads(detcloud("tkn", "ls", "ada", "--json").out)] == [2]
    assert "  1 | bob " in detcloud("token", "describe", "1").out
    assert detcloud("token", "revoke", "1").out == "token 1 was revoked\n"
    assert "bob" not in detcloud("token", "list").out
    assert "bob" in detcloud("token", "list", "--show-inactive").out
    assert detcloud("token", "revoke", "9").err.startswith("error: there is no token 9")


def test_login_stores_a_valid_token(
    fake: FakeCluster, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.delenv("DETCLOUD_URL")
    monkeypatch.delenv("DETCLOUD_TOKEN")
    assert detcloud("token", "login", TOKEN).err.startswith("error: no cluster is named: use --url")
    wrong = detcloud("token", "login", "wrong", "--url", fake.url)
    assert wrong.code == 3
    path = own_home / ".detcloud" / "credentials.json"
    assert not path.exists()
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TOKEN}\n"))
    done = detcloud("--url", fake.url, "token", "login", "-")
    assert done.out == f"ada (user) at {fake.url}, stored in {path}\n"
    assert detcloud("list").code == 0
    assert f"User     ada\nRole     user\nCluster  {fake.url}\n" == detcloud("u", "whoami").out
    assert detcloud("user", "logout").out == "the stored token was removed\n"
    assert detcloud("user", "logout").out == "no token was stored\n"
    assert detcloud("list").code == 4


def test_master_info_and_version_name_cluster_and_versions(
    fake: FakeCluster, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Pools    default\n" in detcloud("master", "info").out
    assert yaml.safe_load(detcloud("master", "info", "--yaml").out)["cluster_id"] == "c"
    versions = json.loads(detcloud("version", "--json").out)
    assert (versions["client"], versions["cluster"]) == (package.__version__, "0.1.0")
    monkeypatch.delenv("DETCLOUD_URL")
    assert detcloud("version").out == (
        f"Client   {package.__version__}\nCluster  N/A\nURL      N/A\n"
    )


def test_server_log_is_printed_and_followed(
    detcloud: Detcloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "data"
    monkeypatch.setenv("DETCLOUD_HOME", str(home))
    assert detcloud("master", "logs").err.startswith(f"error: {home / 'server.log'} does not")
    home.mkdir()
    log = home / "server.log"
    log.write_text("one\ntwo\nthree\n")
    assert detcloud("master", "logs").out == "one\ntwo\nthree\n"
    assert detcloud("master", "logs", "--tail", "1").out == "three\n"
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-m", "detcloud.cli.main", "master", "logs", "-f", "--tail", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"three\n"
            with log.open("a") as file:
                file.write("four\n")
            assert process.stdout.readline() == b"four\n"
            log.write_text("new\n")
            assert process.stdout.readline() == b"new\n"
        finally:
            process.kill()


def test_open_prints_a_link_and_opens_a_browser(
    fake: FakeCluster, detcloud: Detcloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_browser(link: str) -> bool:
        opened.append(link)
        return len(opened) == 1

    monkeypatch.setattr("webbrowser.open", open_browser)
    link = f"{fake.url}/ui/#/sign-in/dct_code"
    assert detcloud("open", "--no-browser").out == f"{link}\n"
    assert opened == []
    assert detcloud("open").err == ""
    assert opened == [link]
    assert "no browser was found" in detcloud("open").err
