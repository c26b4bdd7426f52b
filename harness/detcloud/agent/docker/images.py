"""The image of a trial, which is pulled if needed, with notices in the trial's log.

A registry's refusal is the trial's failure. Problems of the network, the registry or the disk may
pass: the pull is repeated some times, and a final failure counts as the machine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from detcloud.agent.assignment.assignment import LaunchImpossible
from detcloud.agent.docker.engine import EngineError, EngineUnavailable, split_reference
from detcloud.shared.http import ApiError
from detcloud.shared.masking import MASK, mask_urls
from detcloud.shared.plurals import count_text
from detcloud.shared.registries import (
    DOCKER_HUB,
    ecr_repository,
    is_login_for,
    registry_host,
)

if TYPE_CHECKING:
    from detcloud.agent.runtime import LoginIssuer

ATTEMPTS_MAX = 4
RETRY_FIRST_SECONDS = 2.0
AWAY_SECONDS_MAX = 300.0
PROGRESS_SECONDS = 10.0
LOGIN_SECRETS = ("password", "auth", "identitytoken", "registrytoken")
DOCKER_HUB_LOGIN = "https://index.docker.io/v1/"
# Parts of messages with which engines and registries refuse a pull permanently.
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


class PullStopped(Exception):
    """The trial was killed before or during the pull of its image."""


class LoginUnavailable(Exception):
    """The request to the cluster for a registry login failed, maybe temporarily."""


class PullFailed(Exception):
    """The machine could not pull the image in several attempts."""


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """A request for an image with the configuration's options."""

    name: str
    """The image's name, with registry and tag or digest."""
    force_pull: bool = False
    """Whether the image is pulled even if the machine has it."""
    login: Mapping[str, str] | None = field(default=None, repr=False)
    """The configured login, in the form of the engine's AuthConfig, or None."""
    other_registry: str = ""
    """The registry of a configured login that is not sent, because the image's differs; or ""."""
    issue_login: LoginIssuer | None = field(default=None, repr=False)
    """Fetches a login of the cluster for a pull. Not used with `login`."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image on this machine."""

    name: str
    """The requested name."""
    id: str
    """The engine's id of the image."""
    digest: str
    """The digest in the image's registry. Equal to `id` for an image that was built here."""
    python_path: str = ""
    """The image's own PYTHONPATH."""
    is_new: bool = False
    """Whether the machine did not have the image before."""
    pull_seconds: str = ""
    """The seconds that the pull took, as text. "" without a pull."""


class ImageStore(Protocol):
    """The images of a machine, see EngineClient for the meaning of the methods."""

    def find_image(self, name: str) -> dict[str, Any] | None: ...

    def pull_image(
        self,
        name: str,
        login: Mapping[str, str] | None,
        on_event: Callable[[Mapping[str, Any]], None],
    ) -> None: ...


def image_request(
    name: str,
    environment: Mapping[str, Any],
    login: object,
    issue_login: LoginIssuer | None = None,
) -> ImageRequest:
    """Build the request for an image.

    A configured login for another registry than the image's is left out, and named in
    `other_registry`. A configured login for the image's registry excludes `issue_login`.

    Args:
        name: the image's name.
        environment: the section `environment` of the configuration.
        login: the configuration's `registry_auth` with its secrets. Ignored unless a dictionary.
        issue_login: fetches a login of the cluster for an image, or None.
    """
    force_pull = bool(environment.get("force_pull_image"))
    if not isinstance(login, dict):
        return ImageRequest(name, force_pull, issue_login=issue_login)
    server = str(login.get("server") or login.get("serveraddress") or "")
    # An engine would send the login to the image's registry, even if it names another server.
    if not is_login_for(server, name):
        return ImageRequest(name, force_pull, other_registry=server, issue_login=issue_login)
    return ImageRequest(name, force_pull, _engine_login(name, server, login))


def obtain_image(
    engine: ImageStore,
    request: ImageRequest,
    is_needed: Callable[[], bool],
    write_notice: Callable[[str], None],
    *,
    attempts_max: int = ATTEMPTS_MAX,
    sleep: Callable[[float], None] = time.sleep,
) -> Image:
    """Return the requested image. Pull the image if the machine lacks it or `force_pull` is set.

    Retry after failures with growing pauses: up to `attempts_max` attempts if the registry or the
    cluster fails, up to AWAY_SECONDS_MAX seconds if the engine does not answer. Write notices about
    pulls and failures to the trial's log.

    Args:
        engine: the container engine.
        request: the request.
        is_needed: returns False once the trial was killed.
        write_notice: writes a line to the trial's log.
        attempts_max: the limit on attempts.
        sleep: pauses for a number of seconds.

    Raises:
        LaunchImpossible: the registry refuses the image or the login.
        PullFailed: all attempts failed.
        PullStopped: `is_needed` returned False.
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
                # Logins of the cluster expire, and an administrator can change their permissions.
                is_lasting = error.status == 404 or request.issue_login is None
                raise LaunchImpossible(text, is_lasting=is_lasting) from None
            attempts += 1
            failed = attempts >= attempts_max
        text = f"image {request.name} could not be pulled onto this machine: {trouble}"
        text += _network_remedy(trouble)
        write_notice(text if failed else f"{text}; trying again")
        if failed:
            raise PullFailed(text)
        sleep(delay)
        delay = min(2 * delay, 30.0)


def is_refusal(error: EngineError) -> bool:
    """Whether the error is a permanent refusal of a pull, so that a retry is useless.

    False for failures of the network and for unknown errors.
    """
    message = error.message.lower()
    # An unresolved host name, a failed connection or a proxy is a problem of the network.
    if "lookup" in message or "dial tcp" in message or "proxy authentication" in message:
        return False
    return error.status in (400, 401, 403, 404) or any(refusal in message for refusal in _REFUSALS)


class PullProgress:
    """The progress of a pull, which counts the bytes of layers and writes notices.

    Layers that the machine had before are counted separately.

    The time starts with the construction. `now` returns seconds.
    """

    def __init__(
        self, name: str, write_notice: Callable[[str], None], now: Callable[[], float]
    ) -> None:
        self._name = name
        self._write_notice = write_notice
        self._now = now
        self._layers: dict[str, tuple[int, int]] = {}
        self._present: set[str] = set()
        self._began = self._noticed_at = now()

    def record_event(self, event: Mapping[str, Any]) -> None:
        """Count an event of the engine, and write a notice if PROGRESS_SECONDS have passed."""
        layer, detail = str(event.get("id", "")), event.get("progressDetail") or {}
        total = detail.get("total")
        if event.get("status") == "Downloading" and isinstance(total, int):
            self._layers[layer] = (int(detail.get("current") or 0), total)
        elif event.get("status") in ("Download complete", "Pull complete") and (
            layer in self._layers
        ):
            whole = self._layers[layer][1]
            self._layers[layer] = (whole, whole)
        elif event.get("status") == "Already exists":
            self._present.add(layer)
        if self._now() - self._noticed_at >= PROGRESS_SECONDS:
            self._noticed_at = self._now()
            self._write_notice(f"pulling image {self._name}: {self._megabytes()}")

    def report_end(self) -> float:
        """Write a notice that the image was pulled, and return the seconds of the pull."""
        seconds = self._now() - self._began
        size = f", {self._megabytes()}" if self._layers else ""
        present = ""
        if self._present:
            layers = count_text(len(self._present), "layer")
            present = f"; the machine had {layers} already, which saved their download"
        self._write_notice(f"image {self._name} was pulled in {seconds:.0f} s{size}{present}")
        return seconds

    def _megabytes(self) -> str:
        done = sum(current for current, _ in self._layers.values())
        total = sum(size for _, size in self._layers.values())
        return (
            f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if done < total else f"{done / 1e6:.0f} MB"
        )


def _find_or_pull(
    engine: ImageStore,
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
    """Return the login for a pull: the configured login, else a fresh login of the cluster.

    Return None if neither exists. Raise LoginUnavailable if the request to the cluster fails.
    """
    if request.login is not None or request.issue_login is None:
        return request.login
    try:
        issued = request.issue_login(request.name)
    except (OSError, ApiError) as error:
        raise LoginUnavailable(f"the cluster issues no login for it: {error}") from error
    if issued is None:
        return None
    return _engine_login(request.name, str(issued.get("server") or ""), issued)


def _digest(name: str, image: Mapping[str, Any]) -> str:
    """Return the image's digest in the registry of `name`, or the image's id without a digest."""
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
            message = message.replace(secret, MASK)
    return mask_urls(message)


def _network_remedy(trouble: str) -> str:
    """Return the remedy for a failure of Docker's proxy or of a certificate. Return "" for others.

    `trouble` is the text of the failure. The remedy begins with `; `.
    """
    if "Proxy Authentication Required" in trouble:
        fault = "Docker's proxy does not accept its user and password"
    elif "proxyconnect" in trouble:
        fault = "Docker's proxy does not answer"
    elif "certificate signed by unknown authority" in trouble:
        return (
            "; add the authority's certificate to provider.ca_certificates of the pool, or to the "
            "machine's own, and restart Docker"
        )
    else:
        return ""
    return f"; {fault}: correct provider.proxy of the pool, or the proxy of the machine's Docker"


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
