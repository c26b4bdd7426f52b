"""`detcloud webhook`: triggers, secrets, tests, deliveries and refusals."""

import io
import json
import threading
from argparse import ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.queries.cluster_configuration import SHARED_CONFIG
from control_plane.state.table import Expect, Put
from control_plane.webhooks.deliverer import Deliverer
from control_plane.webhooks.records import decode_webhook, webhook_key
from control_plane.webhooks.sender import HttpSender
from detcloud.cli.commands.webhook import parse_trigger
from detcloud.cli.main import main
from tests.unit.api.app_server import serve_app
from tests.unit.api.cluster import TOKENS, Cluster, build_cluster
from tests.unit.webhooks.receiver import HERE, run_receiver


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("ALARM", {"type": "ALARM"}),
        ("alarm:RAISED", {"type": "ALARM", "states": ["raised"]}),
        (
            "experiment-state-change:completed, error",
            {"type": "EXPERIMENT_STATE_CHANGE", "states": ["COMPLETED", "ERROR"]},
        ),
        ("CUSTOM:warn,ERROR", {"type": "CUSTOM", "levels": ["warn", "error"]}),
        ("TASK_LOG:a:b, c", {"type": "TASK_LOG", "pattern": "a:b, c"}),
        (
            "METRIC_THRESHOLD_EXCEEDED:loss < 0.1",
            {"type": "METRIC_THRESHOLD_EXCEEDED", "metric": "loss", "below": 0.1},
        ),
        (
            "METRIC_THRESHOLD_EXCEEDED:val acc>1e-3",
            {"type": "METRIC_THRESHOLD_EXCEEDED", "metric": "val acc", "above": 0.001},
        ),
        (
            "METRIC_THRESHOLD_EXCEEDED:loss>2,loss<0.5",
            {"type": "METRIC_THRESHOLD_EXCEEDED", "metric": "loss", "above": 2, "below": 0.5},
        ),
    ],
)
def test_trigger_is_parsed(text: str, trigger: dict[str, Any]) -> None:
    assert parse_trigger(text) == trigger


@pytest.mark.parametrize(
    "text",
    [
        "BEST_VALIDATION:x",
        "METRIC_THRESHOLD_EXCEEDED:loss",
        "METRIC_THRESHOLD_EXCEEDED:a<b",
        "METRIC_THRESHOLD_EXCEEDED:loss<1,accuracy>2",
    ],
)
def test_wrong_values_of_a_trigger_are_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        parse_trigger(text)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = build_cluster(tmp_path / "objects")
    body = b'{"webhooks": {"allowed_private_hosts": ["127.0.0.1"]}}'
    made.services.table.commit((Put(SHARED_CONFIG, 1, body, Expect.ABSENT),))
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DETCLOUD_TOKEN", TOKENS[Role.ADMIN])
    with serve_app(made.app) as url:
        monkeypatch.setenv("DETCLOUD_URL", url)
        yield made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(("webhook", *words))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_webhook_is_created_shown_and_deleted(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("create", "chat", "https://example.com/x", "--label", "a", "--experiment", "3")
    code, out, err = run(capsys, *words, "-t", "METRIC_THRESHOLD_EXCEEDED:loss<0.1", "--specific")
    assert (code, err) == (0, "store the secret safely: it is shown only once\n")
    assert "Secret    whsec_" in out
    assert "METRIC_THRESHOLD_EXCEEDED:loss<0.1" in out
    assert "specific label:a experiment:3" in out
    described = json.loads(run(capsys, "describe", "chat", "--json")[1])
    assert (described["mode"], described["name"]) == ("SPECIFIC", "chat")
    assert "secret" not in described
    assert "chat" in run(capsys, "list", "--csv")[1]
    assert run(capsys, "delete", "1")[:2] == (0, "webhook 1 was deleted\n")
    code, _, err = run(capsys, "describe", "chat")
    assert (code, "there is no webhook chat" in err) == (3, True)
    assert run(capsys, "describe", "1")[0] == 3


def test_default_trigger_announces_ends(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "create", "chat", "https://example.com/", "--json")
    (trigger,) = json.loads(out)["triggers"]
    assert trigger["states"] == ["COMPLETED", "ERROR"]


@pytest.mark.parametrize(("status", "code"), [(200, 0), (500, 1)])
def test_test_event_shows_the_answer_of_the_receiver(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], status: int, code: int
) -> None:
    with run_receiver(lambda number: status) as receiver:
        run(capsys, "create", "chat", receiver.url)
        services, ended = cluster.services, threading.Event()
        deliverer = Deliverer(services.table, services.now_ms, HttpSender(lambda: HERE), "c")

        def deliver() -> None:
            while not ended.wait(0.05):
                deliverer.deliver(["events#webhook#1"])

        thread = threading.Thread(target=deliver)
        thread.start()
        try:
            tested = run(capsys, "test", "chat", "--json")
        finally:
            ended.set()
            thread.join()
    assert tested[2] == ""
    assert (tested[0], json.loads(tested[1])["status"]) == (code, status)
    shown = run(capsys, "deliveries", "chat")[1]
    assert "test of webhook chat" in shown
    failed = json.loads(run(capsys, "deliveries", "chat", "--state", "failed", "--json")[1])
    assert failed == []


def test_retry_needs_deliveries(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "create", "chat", "https://example.com/")
    code, _, err = run(capsys, "retry", "chat")
    assert (code, "name deliveries" in err) == (1, True)
    assert run(capsys, "retry", "chat", "--failed")[:2] == (0, "")


def test_webhook_is_edited(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "create", "chat", "https://example.com/x", "--label", "a", "-w", "w")
    words = ("--address", "https://example.com/y", "--name", "talk", "-t", "CUSTOM", "--specific")
    code, out, err = run(capsys, "edit", "chat", *words, "--no-filter", "label", "--json")
    assert (code, err) == (0, "")
    changed = json.loads(out)
    assert (changed["name"], changed["url"]) == ("talk", "https://example.com/y")
    assert (changed["labels"], changed["workspace"], changed["mode"]) == ([], "w", "SPECIFIC")
    assert [trigger["type"] for trigger in changed["triggers"]] == ["CUSTOM"]
    code, out, _ = run(capsys, "edit", "talk", "--no-specific", "--label", "b")
    assert "CUSTOM" in out
    assert "workspace:w label:b" in out
    code, _, err = run(capsys, "edit", "talk")
    assert (code, "name a change" in err) == (1, True)
    assert run(capsys, "edit", "chat", "--name", "x")[0] == 3


def test_token_is_read_from_a_file_and_never_printed(
    cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "https://api.github.com/repos/team/digits"
    words = ("create", "ci", url, "--format", "github")
    code, _, err = run(capsys, *words)
    assert code != 0
    assert "token: is missing for the format github" in err
    file = tmp_path / "token"
    file.write_text("token-canary\n")
    code, out, err = run(capsys, *words, "--token-file", str(file))
    assert (code, "canary" in out + err) == (0, False)
    (trigger,) = json.loads(run(capsys, "describe", "ci", "--json")[1])["triggers"]
    assert (trigger["type"], trigger["states"]) == ("EXPERIMENT_STATE_CHANGE", [])
    monkeypatch.setattr("sys.stdin", io.StringIO("other-canary\n"))
    code, out, err = run(capsys, "edit", "ci", "--token-file", "-")
    assert (code, "canary" in out + err) == (0, False)
    row = cluster.services.table.get(webhook_key(1))
    assert row is not None
    assert decode_webhook(row.body).token == "other-canary"
    file.write_text("\n")
    code, _, err = run(capsys, "edit", "ci", "--token-file", str(file))
    assert (code, "has no token" in err) == (1, True)
    code, _, err = run(capsys, "edit", "ci", "--token-file", str(tmp_path / "none"))
    assert (code, "cannot be read" in err) == (1, True)
