"""Instance types that the catalogue does not know: what EC2 says of them, before they are launched.

A pool says the slots of such a type itself. Where its agents would offer others, the provisioner
would launch too many or too few for good; a machine that cannot boot would be paid for again and
again. So the first launch of a type asks EC2, and a later one what it answered then.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import botocore.exceptions as sdk

from control_plane.aws.instance_types import CPU_FAMILIES, GPU_TYPES, NetworkCards
from provisioner.clouds.aws.ec2_api import Ec2Api, error_code
from provisioner.clouds.aws.launch_request import Ec2Settings
from provisioner.clouds.provider import ConfigurationError
from provisioner.model import MINUTE_MS

log = logging.getLogger(__name__)

ANSWER_TTL_MS = 24 * 60 * MINUTE_MS
# Where EC2 does not tell, nothing is held up, and it is asked again after so long.
SILENCE_TTL_MS = 60 * MINUTE_MS
# Of AWS's image, which pools boot that name none.
IMAGE_ARCHITECTURE = "x86_64"
_NO_SUCH_TYPE = "InvalidInstanceType"


@dataclass(frozen=True, slots=True)
class _TypeDescription:
    """A type as EC2 describes it. `gpus`: how many it has, by their makers; 0 of a part of one.
    `cards`: its network cards, None where they have no Elastic Fabric Adapters.
    """

    architectures: tuple[str, ...]
    gpus: dict[str, int]
    cards: NetworkCards | None


class UnknownTypes:
    """The types of one region that the catalogue does not know. `clock` gives epoch ms."""

    def __init__(self, api: Ec2Api, clock: Callable[[], int]) -> None:
        self._api = api
        self._clock = clock
        self._found: dict[str, tuple[int, _TypeDescription | None]] = {}

    def check(self, name: str, slots: int, settings: Ec2Settings) -> None:
        """Check that instances of a type boot and that their agents offer `slots`. Raises
        ConfigurationError; nothing where the catalogue knows the type, or EC2 does not tell.
        """
        found = None if _is_known(name) else self._describe(name)
        if found is None:
            return
        if not settings.image_id:
            _check_image(name, found)
        if set(found.gpus) <= {"NVIDIA"} and all(found.gpus.values()):
            _check_slots(name, sum(found.gpus.values()), slots, settings)

    def network_cards(self, name: str) -> NetworkCards | None:
        """The cards with Elastic Fabric Adapters of a type that the catalogue does not know; None
        for any other type, one without adapters, and where EC2 does not tell.
        """
        found = None if _is_known(name) else self._describe(name)
        return found.cards if found else None

    def _describe(self, name: str) -> _TypeDescription | None:
        until_ms, found = self._found.get(name, (0, None))
        if self._clock() < until_ms:
            return found
        ttl_ms = ANSWER_TTL_MS
        try:
            answer = self._api.describe_instance_types(InstanceTypes=[name])
            found = _parse(answer["InstanceTypes"][0])
        except sdk.ClientError as error:
            if error_code(error) == _NO_SUCH_TYPE:
                text = f"the region has no instance type {name}; use another type or region"
                raise ConfigurationError(text) from None
            log.info("EC2 does not describe %s: %s", name, error_code(error))
            found, ttl_ms = None, SILENCE_TTL_MS
        except (sdk.BotoCoreError, LookupError) as error:
            log.info("EC2 does not describe %s: %s", name, type(error).__name__)
            found, ttl_ms = None, SILENCE_TTL_MS
        self._found[name] = (self._clock() + ttl_ms, found)
        return found


def _is_known(name: str) -> bool:
    return name in GPU_TYPES or name.partition(".")[0] in CPU_FAMILIES


def _parse(described: dict[str, Any]) -> _TypeDescription:
    gpus: dict[str, int] = {}
    for item in described.get("GpuInfo", {}).get("Gpus", ()):
        gpus[item["Manufacturer"]] = gpus.get(item["Manufacturer"], 0) + int(item["Count"])
    architectures = tuple(described["ProcessorInfo"]["SupportedArchitectures"])
    return _TypeDescription(architectures, gpus, _parse_cards(described.get("NetworkInfo", {})))


def _parse_cards(network: dict[str, Any]) -> NetworkCards | None:
    """The network cards, where each has an adapter or all but one, which is then the first."""
    cards = int(network.get("MaximumNetworkCards", 1))
    adapters = min(cards, int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)))
    has_adapters = network.get("EfaSupported") and adapters >= max(1, cards - 1)
    return NetworkCards(adapters, cards) if has_adapters else None


def _check_image(name: str, found: _TypeDescription) -> None:
    remedy = "use another type, or name an image for it in provider.image_id"
    if IMAGE_ARCHITECTURE not in found.architectures:
        has = ", ".join(found.architectures)
        raise ConfigurationError(
            f"{name} has a processor of {has}, and AWS's image is for {IMAGE_ARCHITECTURE}; "
            f"{remedy}"
        )
    others = sorted(set(found.gpus) - {"NVIDIA"})
    if others:
        raise ConfigurationError(
            f"{name} has GPUs of {', '.join(others)}, but AWS's image has only NVIDIA's "
            f"driver; {remedy}"
        )


def _check_slots(name: str, gpus: int, slots: int, settings: Ec2Settings) -> None:
    offered = gpus or int(settings.cpu_slots_allowed)
    if slots == offered:
        return
    what = f"{gpus} GPUs, each a slot" if gpus else "no GPU, and so one slot with cpu_slots_allowed"
    raise ConfigurationError(
        f"{name} has {what}: its agent would offer {offered} slots, and the pool counts {slots}; "
        "set that number in instance_slots, or in slots of the offering"
    )
