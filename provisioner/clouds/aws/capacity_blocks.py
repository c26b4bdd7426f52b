"""Launches into capacity blocks: none before a block's start, and none that EC2 would end before it
has done any work. A block's end is known from its purchase, so EC2 is asked before each launch.
"""

import logging
from collections.abc import Callable
from typing import Any

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError

from control_plane.aws.capacity_blocks import block_use_left_ms, has_block_begun, is_block_over
from provisioner.clouds.aws.ec2_api import Ec2Api, epoch_ms, error_code
from provisioner.clouds.provider import ConfigurationError, NoCapacity
from provisioner.markets import CHANGEOVER_MS
from provisioner.model import MINUTE_MS

log = logging.getLogger(__name__)


class CapacityBlocks:
    """The capacity blocks of one account in one region. `clock` gives epoch ms."""

    def __init__(self, api: Ec2Api, clock: Callable[[], int]) -> None:
        self._api = api
        self._clock = clock

    def check(self, name: str) -> None:
        """Check that what is launched into a block now would get to work in it. Raises NoCapacity,
        and ConfigurationError for a block that is over; nothing where EC2 does not tell, or `name`
        is that of a group, of whose blocks EC2 chooses one.
        """
        found = None if name.startswith("arn:") else self._describe(name)
        if found is None:
            return
        state, begins, ends = found["State"], found.get("StartDate"), found.get("EndDate")
        place = f"capacity block {name}"
        if is_block_over(state):
            text = f"{place} is {state}: name another in provider.capacity_reservation"
            raise ConfigurationError(text)
        if not has_block_begun(state):
            text = f" and begins at {begins:%Y-%m-%d %H:%M} UTC" if begins else ""
            raise NoCapacity(f"{place} is {state}{text}")
        if ends and block_use_left_ms(epoch_ms(ends), self._clock()) < CHANGEOVER_MS:
            raise NoCapacity(
                f"{place} ends at {ends:%Y-%m-%d %H:%M} UTC, and what is in it 30 min before: "
                f"nothing is launched into it in the {CHANGEOVER_MS // MINUTE_MS} min before that"
            )

    def _describe(self, name: str) -> dict[str, Any] | None:
        try:
            answer = self._api.describe_capacity_reservations(CapacityReservationIds=[name])
        except sdk.ClientError as error:
            # The launch itself tells what is wrong with the name.
            log.info("EC2 does not describe %s: %s", name, error_code(error))
        except (sdk.BotoCoreError, ResponseParserError) as error:
            log.info("EC2 does not describe %s: %s", name, type(error).__name__)
        else:
            found: list[dict[str, Any]] = answer["CapacityReservations"]
            return found[0] if found else None
        return None
