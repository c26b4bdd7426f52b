"""Pulls of images, with a fake engine."""

from __future__ import annotations

from typing import Any

import pytest

from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.docker.engine import EngineClient, EngineError
from detcloud.agent.docker.images import PullFailed, PullProgress, image_request, obtain_image


def test_pull_attempts_use_fresh_logins_of_the_cluster() -> None:
    name = "111111111111.dkr.ecr.eu-west-1.amazonaws.com/ml/trial:1"
    sent, logged = list[object](), list[str]()

    class FailingEngine(EngineClient):
        def find_image(self, name: str) -> None:
            return None

        def pull_image(self, name: str, login: Any, on_event: object) -> None:
            sent.append(login)
            raise EngineError(500, f"no space for hush{len(sent)}")

    def issue_login(image: str) -> dict[str, str] | None:
        assert image == name
        if len(sent) == 2:
            raise TimeoutError("the cluster did not answer")
        return {"username": "AWS", "password": f"hush{len(sent) + 1}"}

    request = image_request(name, {}, None, issue_login)
    assert request.login is None
    about = (lambda: True), logged.append
    with pytest.raises(PullFailed, match="the cluster issues no login for it"):
        obtain_image(FailingEngine(""), request, *about, sleep=lambda _: None)
    # Two of four attempts pull; the cluster issues no login for attempts 3 and 4.
    host = name.partition("/")[0]
    assert sent == [
        {"username": "AWS", "password": f"hush{number}", "serveraddress": host} for number in (1, 2)
    ]
    assert "hush" not in " ".join(logged)
    # A login in the configuration takes precedence.
    own = image_request(name, {}, {"username": "me", "password": "x"}, issue_login)
    with pytest.raises(PullFailed):
        obtain_image(FailingEngine(""), own, *about, sleep=lambda _: None)
    assert sent[-1] == {"username": "me", "password": "x", "serveraddress": host}


@pytest.mark.parametrize(
    ("status", "has_issuer", "is_lasting"),
    [(404, False, True), (401, False, True), (404, True, True), (401, True, False)],
)
def test_refused_image_lasts_unless_the_cluster_issues_logins(
    status: int, *, has_issuer: bool, is_lasting: bool
) -> None:
    class RefusingEngine(EngineClient):
        def find_image(self, name: str) -> None:
            return None

        def pull_image(self, name: str, login: Any, on_event: object) -> None:
            raise EngineError(status, "manifest unknown")

    issue_login = (lambda image: {"username": "a", "password": "b"}) if has_issuer else None
    request = image_request("registry.example/trial:1", {}, None, issue_login)
    with pytest.raises(LaunchImpossible, match="manifest unknown") as refused:
        obtain_image(RefusingEngine(""), request, lambda: True, lambda _: None)
    assert refused.value.is_lasting is is_lasting


def test_pull_progress_is_logged_at_intervals() -> None:
    now, logged = [0.0], list[str]()
    progress = PullProgress("org/x:1", logged.append, lambda: now[0])

    def report_download(layer: str, current: int) -> None:
        detail = {"current": current, "total": 60_000_000}
        progress.record_event({"status": "Downloading", "id": layer, "progressDetail": detail})

    for now[0], layer, current in (
        (1, "a", 10_000_000),
        (9, "b", 5_000_000),
        (11, "a", 30_000_000),
    ):
        report_download(layer, current)
    progress.record_event({"status": "Download complete", "id": "a"})
    progress.record_event({"status": "Extracting", "id": "a", "progressDetail": {}})
    now[0] = 21.5
    progress.record_event({"status": "Pull complete", "id": "b"})
    progress.report_end()
    # 30 + 5 of 60 + 60 MB, then all 120 MB.
    assert logged == [
        "pulling image org/x:1: 35 of 120 MB",
        "pulling image org/x:1: 120 MB",
        "image org/x:1 was pulled in 22 s, 120 MB",
    ]
