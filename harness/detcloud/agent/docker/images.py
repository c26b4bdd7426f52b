"""The image of a trial, pulled onto this machine if need be; the trial's log says so.

A registry's refusal is the trial's failure. What may pass (the network, the registry, the disk) is
tried some times and is the machine's failure in the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.docker.engine import EngineError, EngineUnavailable, split_reference
from detcloud.shared.http import ApiError
from detcloud.shared.registries import (
    DOCKER_HUB,
    ecr_repository,
    registry_host,
    registry_of_image,
    registry_of_server,
)

if TYPE_CHECKING:
    from detcloud.agent.docker.engine import EngineClient

ATTEMPTS_MAX = 4
RETRY_FIRST_SECONDS = 2.0
AWAY_SECONDS_MAX = 300.0
PROGRESS_SECONDS = 10.0
LOGIN_SECRETS = ("password", "auth", "identitytoken", "registrytoken")
DOCKER_HUB_LOGIN = "https://index.docker.io/v1/"
# Messages of engines and registries that a repeat would not change.
_REFUSALS = (
    "not found",
    "manifest unknown",
    "name unknown",
    "does not exist",
    "access denied",
    "access forbidden",
    "requested access to the resource is denied",
    "unauthorized",
    "authentication required",
    "no basic auth credentials",
    "incorrect username or password",
    "invalid reference format",
    "invalid tag format",
    "no matching manifest",
)


LoginIssuer = Callable[[str], Mapping[str, str] | None]


class PullStopped(Exception):
    """The trial was killed while its image was pulled."""


class LoginUnavailable(Exception):
    """The cluster issued no login for the registry for now."""


class PullFailed(Exception):
    """The machine could not get the image for now."""


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """The configuration's request for an image.

    `login` is in the engine's form. `other_registry` names the registry of a login that is not sent
    because the image is from another one. `issue_login` fetches a login for one pull, where the
    configuration has none for the registry.
    """

    name: str
    force_pull: bool = False
    login: Mapping[str, str] | None = field(default=None, repr=False)
    other_registry: str = ""
    issue_login: LoginIssuer | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Image:
    """An image on this machine: `digest` names its content, in its registry if it came from one.

    `python_path` is the image's own PYTHONPATH, `is_new` says that it was not here before, and
    `pull_seconds` how long its pull took, "" where none was needed.
    """

    name: str
    id: str
    digest: str
    python_path: str = ""
    is_new: bool = False
    pull_seconds: str = ""


def image_request(
    name: str,
    environment: Mapping[str, Any],
    login: object,
    issue_login: LoginIssuer | None = None,
) -> ImageRequest:
    """The request for an image; `login` is the configuration's `registry_auth`, unmasked."""
    force_pull = bool(environment.get("force_pull_image"))
    if not isinstance(login, dict):
        return ImageRequest(name, force_pull, issue_login=issue_login)
    server = str(login.get("server") or login.get("serveraddress") or "")
    # An engine would send it to the image's registry, whatever address it names.
    if server and registry_of_server(server) != registry_of_image(name):
        return ImageRequest(name, force_pull, other_registry=server, issue_login=issue_login)
    return ImageRequest(name, force_pull, _engine_login(name, server, login))


def obtain_image(
    engine: EngineClient,
    request: ImageRequest,
    is_needed: Callable[[], bool],
    write_notice: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Image:
    """The image, pulled if it is not here or the request forces it.

    `write_notice` writes a line into the trial's log.

    Raises LaunchImpossible where there is no such image for this login, PullFailed where this
    machine does not get it, PullStopped when it is not needed any more.
    """
    attempts, delay = 0, RETRY_FIRST_SECONDS
    give_up_at = time.monotonic() + AWAY_SECONDS_MAX
    while True:
        if not is_needed():
            raise PullStopped(f"image {request.name} is no longer needed")
        try:
            return _find_or_pull(engine, request, is_needed, write_notice)
        except EngineUnavailable as error:
            trouble = str(error)
            failed = time.monotonic() > give_up_at
        except (LoginUnavailable, EngineError) as error:
            trouble = str(error)
            if isinstance(error, EngineError) and is_refusal(error):
                text = f"image {request.name} cannot be pulled: {trouble}; {_advice(request)}"
                write_notice(text)
                raise LaunchImpossible(text) from None
            attempts += 1
            failed = attempts >= ATTEMPTS_MAX
        text = f"image {request.name} could not be pulled onto this machine: {trouble}"
        write_notice(text if failed else f"{text}; trying again")
        if failed:
            raise PullFailed(text)
        sleep(delay)
        delay = min(2 * delay, 30.0)


def is_refusal(error: EngineError) -> bool:
    """Whether a repeat would be answered the same."""
    message = error.message.lower()
    # A host name that is not found, or a proxy's answer, is a matter of the network.
    if "lookup" in message or "dial tcp" in message:
        return False
    return error.status in (400, 401, 403, 404) or any(refusal in message for refusal in _REFUSALS)


class PullProgress:
    """The progress of a pull: counts the bytes of its layers and logs them now and then."""

    def __init__(
        self, name: str, write_notice: Callable[[str], None], now: Callable[[], float]
    ) -> None:
        self._name = name
        self._write_notice = write_notice
        self._now = now
        self._layers: dict[str, tuple[int, int]] = {}
        self._began = self._noticed_at = now()

    def record_event(self, event: Mapping[str, Any]) -> None:
        """Count one event of the engine."""
        layer, detail = str(event.get("id", "")), event.get("progressDetail") or {}
        total = detail.get("total")
        if event.get("status") == "Downloading" and isinstance(total, int):
            self._layers[layer] = (int(detail.get("current") or 0), total)
        elif event.get("status") in ("Download complete", "Pull complete") and (
            layer in self._layers
        ):
            whole = self._layers[layer][1]
            self._layers[layer] = (whole, whole)
        if self._now() - self._noticed_at >= PROGRESS_SECONDS:
            self._noticed_at = self._now()
            self._write_notice(f"pulling image {self._name}: {self._megabytes()}")

    def report_end(self) -> float:
        """Log that the image was pulled, and return in how many seconds."""
        seconds = self._now() - self._began
        size = f", {self._megabytes()}" if self._layers else ""
        self._write_notice(f"image {self._name} was pulled in {seconds:.0f} s{size}")
        return seconds

    def _megabytes(self) -> str:
        done = sum(current for current, _ in self._layers.values())
        total = sum(size for _, size in self._layers.values())
        return (
            f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if done < total else f"{done / 1e6:.0f} MB"
        )


def _find_or_pull(
    engine: EngineClient,
    request: ImageRequest,
    is_needed: Callable[[], bool],
    write_notice: Callable[[str], None],
) -> Image:
    pull_seconds = ""
    image = before = engine.find_image(request.name)
    if image is None or request.force_pull:
        write_notice(f"pulling image {request.name}")
        progress = PullProgress(request.name, write_notice, time.monotonic)

        def on_event(event: Mapping[str, Any]) -> None:
            if not is_needed():
                raise PullStopped(f"image {request.name} is no longer needed")
            progress.record_event(event)

        login = _current_login(request)
        try:
            engine.pull_image(request.name, login, on_event)
        except EngineError as error:
            raise EngineError(error.status, _mask_secret(error.message, login)) from None
        pull_seconds = f"{progress.report_end():.1f}"
        image = engine.find_image(request.name)
    if image is None:
        raise EngineError(500, "the engine pulled it but does not have it")
    variables = (image.get("Config") or {}).get("Env") or ()
    paths = [str(one).partition("=")[2] for one in variables if str(one).startswith("PYTHONPATH=")]
    is_new = before is None or before["Id"] != image["Id"]
    return Image(
        request.name,
        str(image["Id"]),
        _digest(request.name, image),
        "".join(paths),
        is_new,
        pull_seconds,
    )


def _current_login(request: ImageRequest) -> Mapping[str, str] | None:
    """The login to pull with: the configuration's own, or a fresh one of the cluster's."""
    if request.login is not None or request.issue_login is None:
        return request.login
    try:
        issued = request.issue_login(request.name)
    except (OSError, ApiError) as error:
        raise LoginUnavailable(f"the cluster issues no login for it: {error}") from error
    return None if issued is None else _engine_login(request.name, "", issued)


def _digest(name: str, image: Mapping[str, Any]) -> str:
    """The digest by which a registry knows the image; the id of one that was built here."""
    repository, _ = split_reference(name)
    for known in image.get("RepoDigests") or ():
        holder, _, digest = str(known).partition("@")
        if repository == holder or repository.endswith(f"/{holder}"):
            return digest
    return str(image["Id"])


def _engine_login(name: str, server: str, fields: Mapping[str, Any]) -> Mapping[str, str]:
    names = ("username", "email", *LOGIN_SECRETS)
    login = {key: str(fields[key]) for key in names if fields.get(key)}
    registry = registry_host(name)
    address = DOCKER_HUB_LOGIN if registry == DOCKER_HUB else registry
    return {**login, "serveraddress": server or address}


def _mask_secret(message: str, login: Mapping[str, str] | None) -> str:
    for name in LOGIN_SECRETS:
        if secret := (login or {}).get(name):
            message = message.replace(secret, "********")
    return message


def _advice(request: ImageRequest) -> str:
    if request.other_registry:
        return (
            f"environment.registry_auth is for {request.other_registry} and was not sent; set "
            "the login of the image's registry if it needs one"
        )
    if request.login is None and request.issue_login is not None:
        return (
            "check its name; the cluster logs in to this registry by its own role, which the "
            "policy of a repository in another account must let pull"
        )
    if request.login is None and ecr_repository(request.name):
        return (
            "check its name; the setting imageRepositories of the deployment names the private "
            "repositories of ECR that the cluster may pull from, without environment.registry_auth"
        )
    if request.login is None:
        return "check its name, or give environment.registry_auth if the registry needs a login"
    return "check its name and environment.registry_auth"
