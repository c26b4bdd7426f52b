"""The check of instance types before a launch, by name or by the description of EC2.

The name of a type in the catalogue decides whether the default image boots. For other types, the
pool's settings give the slots. If the agents offered another number, the
provisioner would always launch too many or too few instances. If the image did not boot on the
type, every attempt would cost money. The first launch therefore reads the type's description from
EC2; later launches use the cached description.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError

from control_plane.aws.default_image import ARCHITECTURE, find_gpu_problem, find_image_problem
from control_plane.aws.instance_types import CPU_FAMILIES, GPU_TYPES, NetworkCards
from control_plane.fleet.gpu_models import find_gpu_model
from detcloud.shared.plurals import count_text
from provisioner.clouds.aws.ec2_api import Ec2Api, error_code
from provisioner.clouds.aws.launch_request import Ec2Settings
from provisioner.clouds.provider import ConfigurationError
from provisioner.model import MINUTE_MS

log = logging.getLogger(__name__)

ANSWER_TTL_MS = 24 * 60 * MINUTE_MS
# A missing description does not prevent a launch. EC2 is asked again after this time.
SILENCE_TTL_MS = 60 * MINUTE_MS
_NO_SUCH_TYPE = "InvalidInstanceType"


@dataclass(frozen=True, slots=True)
class _TypeDescription:
    """The properties of an instance type, from EC2."""

    architectures: tuple[str, ...]
    """The names of the processor architectures that the type supports."""
    gpus: dict[str, int]
    """The number of GPUs by manufacturer; 0 for a fraction of a GPU."""
    models: tuple[str, ...]
    """EC2's names of the GPUs, for example `V100`."""
    cards: NetworkCards | None
    """The network cards; None without Elastic Fabric Adapters."""


class UnknownTypes:
    """A region's instance types that the catalogue lacks, with cached descriptions.

    `clock` returns epoch milliseconds.
    """

    def __init__(self, api: Ec2Api, clock: Callable[[], int]) -> None:
        self._api = api
        self._clock = clock
        self._descriptions: dict[str, tuple[int, _TypeDescription | None]] = {}

    def check(self, name: str, slots: int, settings: Ec2Settings) -> None:
        """Check that the default image boots on a type and that agents on the type offer `slots`.

        Make no request if the catalogue contains the type: then the type's name decides whether the
        image boots. Otherwise read the description from EC2, or use the cached one. If EC2 gives no
        description, which is logged, only the name is checked. The image is only checked if the
        pool names none. The slots are only checked for types outside the catalogue with whole
        NVIDIA GPUs or no GPU.

        Raises:
            ConfigurationError: a check fails, or the region lacks the type.
        """
        description = None if _is_known(name) else self._describe(name)
        if description is None:
            problem = None if settings.image_id else find_image_problem(name)
            if problem:
                raise ConfigurationError(f"{name} cannot boot: {problem.text}; {problem.remedy}")
            return
        if not settings.image_id:
            _check_image(name, description)
        gpus = description.gpus
        if set(gpus) <= {"NVIDIA"} and all(gpus.values()):
            _check_slots(name, sum(gpus.values()), slots, settings)

    def network_cards(self, name: str) -> NetworkCards | None:
        """Return the network cards with Elastic Fabric Adapters of a type outside the catalogue.

        The description is read from EC2, or cached. Return None for a type in the catalogue, a type
        without such adapters, or if EC2 gives no description. Raises ConfigurationError for a type
        that the region lacks.
        """
        description = None if _is_known(name) else self._describe(name)
        return description.cards if description else None

    def _describe(self, name: str) -> _TypeDescription | None:
        """Return the description of a type, cached for a day or read from EC2.

        If the request fails or the answer is unreadable, log this and return None; EC2 is asked
        again after SILENCE_TTL_MS. Raises ConfigurationError for a type that the region lacks; the
        error is not cached.
        """
        until_ms, description = self._descriptions.get(name, (0, None))
        if self._clock() < until_ms:
            return description
        ttl_ms = ANSWER_TTL_MS
        try:
            answer = self._api.describe_instance_types(InstanceTypes=[name])
            description = _parse(answer["InstanceTypes"][0])
        except sdk.ClientError as error:
            if error_code(error) == _NO_SUCH_TYPE:
                text = f"the region has no instance type {name}; use another type or region"
                raise ConfigurationError(text) from None
            log.info("EC2 does not describe %s: %s", name, error_code(error))
            description, ttl_ms = None, SILENCE_TTL_MS
        except (sdk.BotoCoreError, ResponseParserError, LookupError) as error:
            log.info("EC2 does not describe %s: %s", name, type(error).__name__)
            description, ttl_ms = None, SILENCE_TTL_MS
        self._descriptions[name] = (self._clock() + ttl_ms, description)
        return description


def _is_known(name: str) -> bool:
    """Whether the catalogue contains the type, or lists the type's family as without GPUs.

    The family is the part of the name before the point. EC2 is not asked.
    """
    return name in GPU_TYPES or name.partition(".")[0] in CPU_FAMILIES


def _parse(described: dict[str, Any]) -> _TypeDescription:
    """Parse a type of EC2's DescribeInstanceTypes.

    A type without GPUs has no entries in `gpus`. Raises KeyError if a required field is missing.
    """
    gpus: dict[str, int] = {}
    items = described.get("GpuInfo", {}).get("Gpus", ())
    for item in items:
        gpus[item["Manufacturer"]] = gpus.get(item["Manufacturer"], 0) + int(item["Count"])
    models = tuple(str(item.get("Name", "")) for item in items)
    architectures = tuple(described["ProcessorInfo"]["SupportedArchitectures"])
    cards = _parse_cards(described.get("NetworkInfo", {}))
    return _TypeDescription(architectures, gpus, models, cards)


def _parse_cards(network: dict[str, Any]) -> NetworkCards | None:
    """Return a type's network cards, with the numbers of cards and of EFAs.

    Return None unless the type has EFAs on all cards, or all but the first. Missing fields count as
    a single card and no EFA.
    """
    cards = int(network.get("MaximumNetworkCards", 1))
    adapters = min(cards, int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)))
    has_adapters = network.get("EfaSupported") and adapters >= max(1, cards - 1)
    return NetworkCards(adapters, cards) if has_adapters else None


def _check_image(name: str, description: _TypeDescription) -> None:
    """Raise ConfigurationError if the default image does not support the type's hardware.

    The image supports processors with ARCHITECTURE, and GPUs of NVIDIA since Turing or no GPUs. An
    unknown GPU of NVIDIA passes. The caller skips this check for pools with an own image. `name` is
    the instance type's, for the message.
    """
    remedy = "use another type, or name an image for it in provider.image_id"
    if ARCHITECTURE not in description.architectures:
        has = ", ".join(description.architectures)
        raise ConfigurationError(
            f"{name} has a processor of {has}, and AWS's image is for {ARCHITECTURE}; {remedy}"
        )
    others = sorted(set(description.gpus) - {"NVIDIA"})
    if others:
        raise ConfigurationError(
            f"{name} has GPUs of {', '.join(others)}, but AWS's image has only NVIDIA's "
            f"driver; {remedy}"
        )
    for model in filter(None, map(find_gpu_model, description.models)):
        if problem := find_gpu_problem(model):
            raise ConfigurationError(f"{name} cannot boot: {problem.text}; {problem.remedy}")


def _check_slots(name: str, gpus: int, slots: int, settings: Ec2Settings) -> None:
    """Raise ConfigurationError if an agent with `gpus` GPUs would not offer `slots` slots.

    Each GPU is a slot. An agent without GPUs offers one slot if the pool allows CPU slots, else
    none. `name` is the instance type's, for the message.
    """
    offered = gpus or int(settings.cpu_slots_allowed)
    if slots == offered:
        return
    what = (
        f"{count_text(gpus, 'GPU')}, each a slot"
        if gpus
        else "no GPU, and so one slot with cpu_slots_allowed"
    )
    raise ConfigurationError(
        f"{name} has {what}: its agent would offer {count_text(offered, 'slot')}, "
        f"and the pool counts {slots}; "
        "set that number in instance_slots, or in slots of the offering"
    )
