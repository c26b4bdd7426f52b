"""The check before a launch into a capacity block.

Nothing is launched before a block begins, nor when an instance could not start its work before the
block's end. EC2 reports the end of a block from its purchase on, so each launch reads it.
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
    """The capacity blocks of an account in a region. `clock` returns epoch milliseconds."""

    def __init__(self, api: Ec2Api, clock: Callable[[], int]) -> None:
        self._api = api
        self._clock = clock

    def check(self, name: str) -> None:
        """Check that an instance launched into the block now would have time to work.

        Reads the block from EC2 at each call, without a cache. Return if the block is active and at
        least CHANGEOVER_MS are left until EC2 begins to end the block's instances. Return without a
        check if EC2 does not describe the block or does not answer, which is logged. Return also if
        `name` is the ARN of a group, from which EC2 chooses a block itself.

        Raises:
            NoCapacity: the block has not begun, or its end is too near.
            ConfigurationError: the block is over, or was cancelled or failed.
        """
        block = None if name.startswith("arn:") else self._describe(name)
        if block is None:
            return
        state, begins, ends = block["State"], block.get("StartDate"), block.get("EndDate")
        place = f"capacity block {name}"
        if is_block_over(state):
            text = f"{place} is {state}: name another in provider.capacity_reservation"
            raise ConfigurationError(text)
        if not has_block_begun(state):
            text = f" and begins at {begins:%Y-%m-%d %H:%M} UTC" if begins else ""
            raise NoCapacity(f"{place} is {state}{text}")
        if ends and block_use_left_ms(epoch_ms(ends), self._clock()) < CHANGEOVER_MS:
            raise NoCapacity(
                f"{place} ends at {ends:%Y-%m-%d %H:%M} UTC, and EC2 ends its instances 30 min "
                f"earlier: no launch in the {CHANGEOVER_MS // MINUTE_MS} min before that"
            )

    def _describe(self, name: str) -> dict[str, Any] | None:
        """Return EC2's description of a reservation.

        Return None if EC2 does not know the reservation, or if the request fails. A failed request
        is logged; no error of the SDK is raised.
        """
        try:
            answer = self._api.describe_capacity_reservations(CapacityReservationIds=[name])
        except sdk.ClientError as error:
            # The launch request reports errors of the name to the user.
            log.info("EC2 does not describe %s: %s", name, error_code(error))
        except (sdk.BotoCoreError, ResponseParserError) as error:
            log.info("EC2 does not describe %s: %s", name, type(error).__name__)
        else:
            reservations: list[dict[str, Any]] = answer["CapacityReservations"]
            return reservations[0] if reservations else None
        return None
