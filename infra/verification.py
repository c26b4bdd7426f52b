"""Calls of a cloud that the self-test of a deployed cluster makes with the deployer's credentials.

`detcloud deploy verify` does everything else as a user of the cluster's API.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from provisioner.clouds.provider import CloudError
from provisioner.model import ProvisionerSettings
from provisioner.offerings import cheapest_offerings, offerings_with_prices
from provisioner.settings import SettingsInvalid, parse_provider_settings


class VerifyFailed(Exception):
    """A call of the self-test failed; the message is for users."""


@dataclass(frozen=True)
class Place:
    """The place of a stack."""

    account: str
    """The account's id, or the project's id; the report masks this text."""
    region: str
    """The region of the stack."""
    private: tuple[str, ...] = ()
    """Further texts that the report masks, for example the project's number."""


@dataclass(frozen=True)
class ListedInstance:
    """An instance of the cluster that is listed by the cloud and has not ended."""

    id: str
    """The id of the instance and of the instance's agent."""
    zone: str
    state: str
    """The cloud's word for the state, for example `running`."""
    removal: str
    """The shell command that ends the instance."""


@dataclass(frozen=True)
class SentNotice:
    """An interruption notice that was sent to an instance."""

    means: str
    """How the notice was sent, for the report."""
    simulated: bool
    """Whether the cloud itself knows nothing of the interruption."""


@dataclass(frozen=True)
class AlarmCheck:
    """The result of the check of an alarm."""

    name: str
    result: str
    """`ok`, `failed` or `skipped`."""
    reason: str = ""
    """Empty for `ok` without a remark."""


@dataclass(frozen=True)
class PricedOffering:
    """An offering of a pool, as `detcloud resource-pool describe` shows offerings."""

    offering: str
    """The name of the offering."""
    instance_type: str
    zone: str
    market: str
    slots: int
    price_per_hour: float
    """The price in dollars; 0 if unknown."""


class StackVerifier(Protocol):
    """The calls of a cloud for the self-test of a stack. All calls raise VerifyFailed."""

    def place(self) -> Place:
        """Return the stack's place. The cloud is not called."""
        ...

    def price_offerings(self, provider: str) -> list[PricedOffering]:
        """Return the cheapest offerings of a pool, the cheapest first.

        `provider` is the section of the pool's configuration as JSON.
        """
        ...

    def send_notice(self, instance: str, zone: str, role: str) -> SentNotice:
        """Send an interruption notice for an instance of the cluster.

        `role` is the role for a fault injection service of the cloud, or "".
        """
        ...

    def check_alarms(self) -> list[AlarmCheck]:
        """Trigger or read each alarm of the stack, and return a result for each."""
        ...

    def list_instances(self) -> list[ListedInstance]:
        """Return the cluster's instances in the cloud that have not ended."""
        ...

    def end_instances(self, instances: Sequence[tuple[str, str]]) -> None:
        """Ask the cloud to end instances of the cluster, given as pairs of zone and id.

        An instance that no longer exists is ignored.
        """
        ...


PARTS: Final = ("place", "prices", "notice", "alarms", "instances", "end")
"""The parts of a self-test that call the cloud."""


def read_offerings(
    provider: str, open_cloud: Callable[[ProvisionerSettings], Any]
) -> list[PricedOffering]:
    """Return the cheapest offerings of a pool, the cheapest first.

    Args:
        provider: the `provider` section of the pool as JSON. Periods are ignored.
        open_cloud: returns the provisioner's provider for the settings of a pool.

    Raises:
        VerifyFailed: the section is invalid, or the cloud refused.
    """
    section: dict[str, Any] = json.loads(provider)
    # The API returns periods in another unit, and offerings do not depend on periods.
    kept = {name: value for name, value in section.items() if not name.endswith("_period")}
    try:
        settings = parse_provider_settings(json.dumps(kept))
        known = open_cloud(settings).offerings()
    except (CloudError, SettingsInvalid) as error:
        raise VerifyFailed(f"the prices are unknown: {error}") from None
    return [
        PricedOffering(
            offering.name,
            offering.instance_type,
            offering.zone,
            offering.market.value,
            offering.slots,
            offering.price_per_hour,
        )
        for offering in cheapest_offerings(offerings_with_prices(settings.offerings, known))
    ]


def run_part(
    verifier: StackVerifier,
    part: str,
    instances: Sequence[str] = (),
    role: str = "",
    providers: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Run a part of PARTS, and return the result as a JSON object.

    Args:
        verifier: the calls of the stack's cloud.
        part: a text of PARTS.
        instances: the instances as ZONE/ID. `notice` uses the first; other parts than `notice` and
            `end` use none.
        role: the role for the cloud's fault injection service, or "".
        providers: the sections for `prices`, as JSON.

    Raises:
        VerifyFailed: the cloud refused or did not answer, or `notice` has no instance.
    """
    pairs = [(zone, name) for zone, _, name in (text.partition("/") for text in instances)]
    if part == "place":
        return asdict(verifier.place())
    if part == "prices":
        return {
            "offerings": [
                [asdict(offering) for offering in verifier.price_offerings(provider)]
                for provider in providers
            ]
        }
    if part == "alarms":
        return {"alarms": [asdict(alarm) for alarm in verifier.check_alarms()]}
    if part == "instances":
        return {"instances": [asdict(instance) for instance in verifier.list_instances()]}
    if part == "end":
        verifier.end_instances(pairs)
        return {}
    if not pairs:
        raise VerifyFailed("a notice needs an instance")
    [(zone, name), *_] = pairs
    return asdict(verifier.send_notice(name, zone, role))
