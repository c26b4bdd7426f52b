"""Has a trial's image on this machine: looks for it, pulls it, tells of both in the trial's log.

A registry that says no is the trial's failure. What may pass (the network, the registry, the disk)
is tried some times and is the machine's failure in the end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment import LaunchImpossible
from detcloud.agent.docker_api import EngineAway, EngineRefused, split_reference
from detcloud.registries import (
    DOCKER_HUB,
    registry_in,
    registry_of_image,
    registry_of_server,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from detcloud.agent.docker_api import Engine

ATTEMPTS_MAX = 4
RETRY_FIRST_SECONDS = 2.0
AWAY_SECONDS_MAX = 300.0
PROGRESS_SECONDS = 10.0
DOCKER_HUB_LOGIN = "https://index.docker.io/v1/"
# What engines and registries say of an image that asking again would not bring.
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
    """The trial was killed while its image was pulled."""


class PullFailed(Exception):
    """This machine could not get the image now."""


@dataclass(frozen=True, slots=True)
class ImageAsked:
    """What the configuration says of the image; `login` is as the engine takes it, and
    `other_registry` whose login it is where it is not sent, because it is not the image's.
    """

    name: str
    force_pull: bool = False
    login: Mapping[str, str] | None = field(default=None, repr=False)
    other_registry: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """An image of this machine: `digest` names its content, in its registry if it came from one.

    `python_path` is what its own PYTHONPATH says, `is_new` whether it was not here before.
    """

    name: str
    id: str
    digest: str
    python_path: str = ""
    is_new: bool = False


def image_asked(name: str, environment: Mapping[str, Any], login: object) -> ImageAsked:
    """`login` is the configuration's `registry_auth`, unmasked."""
    force_pull = bool(environment.get("force_pull_image"))
    if not isinstance(login, dict):
        return ImageAsked(name, force_pull)
    server = str(login.get("server") or "")
    # An engine would send it to the image's registry, whatever address it names.
    if server and registry_of_server(server) != registry_of_image(name):
        return ImageAsked(name, force_pull, other_registry=server)
    return ImageAsked(name, force_pull, _engine_login(name, server, login))


def obtained(
    engine: Engine,
    asked: ImageAsked,
    wanted: Callable[[], bool],
    tell: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> Image:
    """The image, pulled if it is not here or if that was asked for. `tell` writes into the log.

    Raises LaunchImpossible where there is no such image for this login, PullFailed where this
    machine does not get it, PullStopped when it is not `wanted` any more.
    """
    attempts, delay = 0, RETRY_FIRST_SECONDS
    give_up_at = time.monotonic() + AWAY_SECONDS_MAX
    while True:
        if not wanted():
            raise PullStopped(f"image {asked.name} is needed no more")
        try:
            return _obtained(engine, asked, wanted, tell)
        except EngineAway as error:
            trouble = str(error)
            failed = time.monotonic() > give_up_at
        except EngineRefused as error:
            trouble = _without_secret(error.message, asked)
            if is_refusal(error):
                text = f"image {asked.name} cannot be pulled: {trouble}; {_advice(asked)}"
                tell(text)
                raise LaunchImpossible(text) from None
            attempts += 1
            failed = attempts >= ATTEMPTS_MAX
        text = f"image {asked.name} could not be pulled onto this machine: {trouble}"
        tell(text if failed else f"{text}; trying again")
        if failed:
            raise PullFailed(text)
        sleep(delay)
        delay = min(2 * delay, 30.0)


def is_refusal(error: EngineRefused) -> bool:
    """Whether asking again would be answered the same."""
    said = error.message.lower()
    # A host name that is not found, or a proxy's answer, is a matter of the network.
    if "lookup" in said or "dial tcp" in said:
        return False
    return error.status in (400, 401, 403, 404) or any(refusal in said for refusal in _REFUSALS)


class PullProgress:
    """Counts the bytes of a pull's layers, and says now and then how far it has come."""

    def __init__(self, name: str, tell: Callable[[str], None], now: Callable[[], float]) -> None:
        self._name = name
        self._tell = tell
        self._now = now
        self._layers: dict[str, tuple[int, int]] = {}
        self._began = self._told_at = now()

    def heard(self, event: Mapping[str, Any]) -> None:
        """Take one event of the engine."""
        layer, detail = str(event.get("id", "")), event.get("progressDetail") or {}
        total = detail.get("total")
        if event.get("status") == "Downloading" and isinstance(total, int):
            self._layers[layer] = (int(detail.get("current") or 0), total)
        elif event.get("status") in ("Download complete", "Pull complete") and (
            layer in self._layers
        ):
            whole = self._layers[layer][1]
            self._layers[layer] = (whole, whole)
        if self._now() - self._told_at >= PROGRESS_SECONDS:
            self._told_at = self._now()
            self._tell(f"pulling image {self._name}: {self._megabytes()}")

    def ended(self) -> None:
        """The image is here."""
        seconds = self._now() - self._began
        size = f", {self._megabytes()}" if self._layers else ""
        self._tell(f"image {self._name} was pulled in {seconds:.0f} s{size}")

    def _megabytes(self) -> str:
        done = sum(current for current, _ in self._layers.values())
        total = sum(size for _, size in self._layers.values())
        return (
            f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if done < total else f"{done / 1e6:.0f} MB"
        )


def _obtained(
    engine: Engine, asked: ImageAsked, wanted: Callable[[], bool], tell: Callable[[str], None]
) -> Image:
    found = before = engine.image(asked.name)
    if found is None or asked.force_pull:
        tell(f"pulling image {asked.name}")
        progress = PullProgress(asked.name, tell, time.monotonic)

        def heard(event: Mapping[str, Any]) -> None:
            if not wanted():
                raise PullStopped(f"image {asked.name} is needed no more")
            progress.heard(event)

        engine.pull(asked.name, asked.login, heard)
        progress.ended()
        found = engine.image(asked.name)
    if found is None:
        raise EngineRefused(500, "the engine pulled it and does not have it")
    variables = (found.get("Config") or {}).get("Env") or ()
    paths = [str(one).partition("=")[2] for one in variables if str(one).startswith("PYTHONPATH=")]
    is_new = before is None or before["Id"] != found["Id"]
    return Image(asked.name, str(found["Id"]), _digest(asked.name, found), "".join(paths), is_new)


def _digest(name: str, found: Mapping[str, Any]) -> str:
    """By which a registry knows the image; one that was built here has only its own id."""
    repository, _ = split_reference(name)
    for known in found.get("RepoDigests") or ():
        holder, _, digest = str(known).partition("@")
        if repository == holder or repository.endswith(f"/{holder}"):
            return digest
    return str(found["Id"])


def _engine_login(name: str, server: str, fields: Mapping[str, Any]) -> Mapping[str, str]:
    names = ("username", "password", "email")
    given = {one: str(fields[one]) for one in names if fields.get(one)}
    own = registry_in(name)
    return {**given, "serveraddress": server or (DOCKER_HUB_LOGIN if own == DOCKER_HUB else own)}


def _without_secret(message: str, asked: ImageAsked) -> str:
    password = (asked.login or {}).get("password")
    return message.replace(password, "********") if password else message


def _advice(asked: ImageAsked) -> str:
    if asked.other_registry:
        return (
            f"environment.registry_auth is for {asked.other_registry} and was not sent; give the "
            "login of the image's registry if that needs one"
        )
    if asked.login is None:
        return "check its name, or give environment.registry_auth if the registry needs a login"
    return "check its name and environment.registry_auth"
