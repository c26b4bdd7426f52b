"""The pull before the first trial, with a cache of images that the test controls."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.docker.early_pull import EarlyPull
from detcloud.agent.docker.images import ImageRequest, PullFailed, PullStopped
from detcloud.shared.http import ApiError
from tests.patience import wait_until

IMAGE, OTHER = "org/trial:1", "org/other:1"


class Images:
    """A cache whose pulls run until `finish` is set, or until they are not needed any more."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.requests: list[ImageRequest] = []
        self.finish = threading.Event()
        self.stopped = threading.Event()

    def obtain_image(
        self, request: ImageRequest, is_needed: Callable[[], bool], write: Callable[[str], None]
    ) -> None:
        self.requests.append(request)
        while not self.finish.wait(0.01):
            if not is_needed():
                self.stopped.set()
                raise PullStopped("not needed")
            write("pulling")
        if self.error is not None:
            raise self.error


class Machine:
    """An early pull, with the agent's log and a trial's log."""

    def __init__(self, images: Images) -> None:
        self.log: list[str] = []
        self.trial_log: list[str] = []
        self.early = EarlyPull(images, self.log.append)  # type: ignore[arg-type]

    def await_image(self, name: str, is_needed: Callable[[], bool] = lambda: True) -> float:
        return self.early.await_image(name, is_needed, self.trial_log.append)


def test_trial_waits_for_the_pull_of_its_image_and_sees_the_progress() -> None:
    images = Images()
    machine = Machine(images)
    machine.early.begin(IMAGE)
    threading.Timer(0.3, images.finish.set).start()
    assert machine.await_image(IMAGE) > 0
    assert images.requests == [ImageRequest(IMAGE)]
    assert (
        machine.trial_log[0]
        == f"image {IMAGE} has been pulled since the start of this machine's agent"
    )
    assert "pulling" in machine.trial_log
    # Later trials do not wait, and cause no further pull.
    assert machine.await_image(IMAGE) == 0
    machine.early.begin(OTHER)
    assert len(images.requests) == 1


def test_trial_with_another_image_stops_the_pull() -> None:
    images = Images()
    machine = Machine(images)
    machine.early.begin(IMAGE)
    wait_until(lambda: images.requests)
    assert machine.await_image(OTHER) == 0
    assert images.stopped.wait(30)
    wait_until(lambda: any("was stopped" in line for line in machine.log))
    assert "pulling" not in machine.trial_log


def test_trial_with_another_image_does_not_stop_the_pull_of_an_earlier_trial() -> None:
    images = Images()
    machine = Machine(images)
    machine.early.begin(IMAGE)
    first = threading.Thread(target=machine.await_image, args=(IMAGE,))
    first.start()
    wait_until(lambda: machine.trial_log)
    assert machine.await_image(OTHER) == 0
    images.finish.set()
    first.join(30)
    assert not images.stopped.is_set()


def test_killed_trial_does_not_wait() -> None:
    images = Images()
    machine = Machine(images)
    machine.early.begin(IMAGE)
    machine.await_image(IMAGE, lambda: False)
    images.finish.set()


def test_no_pull_begins_after_a_trial() -> None:
    images = Images()
    machine = Machine(images)
    assert machine.await_image(IMAGE) == 0
    machine.early.begin(IMAGE)
    assert images.requests == []


@pytest.mark.parametrize(
    "error", [LaunchImpossible("refused"), PullFailed("no network"), OSError("disk full")]
)
def test_failed_pull_is_only_logged(error: Exception) -> None:
    images = Images(error)
    images.finish.set()
    machine = Machine(images)
    machine.early.begin(IMAGE)
    wait_until(lambda: machine.log)
    assert machine.log == [f"no image was pulled before the first trial: {error}"]
    machine.await_image(IMAGE)
    assert machine.early.take_failure(OTHER) == ""
    assert machine.early.take_failure(IMAGE) == str(error)
    # Later trials find the image, or fail by themselves.
    assert machine.early.take_failure(IMAGE) == ""


@pytest.mark.parametrize(
    ("status", "raised"), [(403, LaunchImpossible), (503, ApiError), (429, ApiError)]
)
def test_refused_login_is_not_requested_again(status: int, raised: type[Exception]) -> None:
    images = Images()
    images.finish.set()
    machine = Machine(images)

    def refuse(image: str) -> None:
        raise ApiError(status, "", "no login")

    machine.early.begin(IMAGE, refuse)
    wait_until(lambda: images.requests)
    issue_login = images.requests[0].issue_login
    assert issue_login is not None
    # The pull repeats an ApiError, and ends with LaunchImpossible.
    with pytest.raises(raised, match="no login"):
        issue_login(IMAGE)


def test_pull_uses_the_login_of_the_cluster() -> None:
    images = Images()
    images.finish.set()
    machine = Machine(images)

    def issue_login(image: str) -> dict[str, str]:
        return {"username": "AWS", "password": "hush"}

    machine.early.begin(IMAGE, issue_login)
    wait_until(lambda: images.requests)
    [request] = images.requests
    assert request.login is None
    assert request.issue_login is not None
    assert request.issue_login(IMAGE) == {"username": "AWS", "password": "hush"}
    machine.await_image(IMAGE)
    assert machine.early.take_failure(IMAGE) == ""
