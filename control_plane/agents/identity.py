"""Who an instance is: proved once, by the cloud that it runs in.

The instance makes its join token itself and proves its digest along with itself, so that no answer
holds a secret, a lost answer is asked for again, and a proof that somebody else sends on gains them
nothing. A second proof of one instance with another digest is refused and alarms: whoever sent it
has its credentials.
"""

import json
import logging
from dataclasses import dataclass
from typing import Protocol

from control_plane.actors.step import Refused
from control_plane.fleet.records import InstanceState, instances_of
from control_plane.fleet.rows import decode_instance
from control_plane.state.table import Check, Conflict, Expect, Key, Put, Row, StateTable

log = logging.getLogger(__name__)

IDENTITIES = "identities"


@dataclass(frozen=True, slots=True)
class Proof:
    """What an instance sends: a request to its cloud that the cloud's own keys have signed.

    `token_sha256` (hexadecimal) and the cluster's id are signed with it.
    """

    token_sha256: str
    authorization: str
    date: str
    security_token: str


class ProofRefused(Exception):
    """The proof does not hold; the message is for the instance's log."""


class Witness(Protocol):
    """Asks a cloud who signed a proof."""

    def instance_of(self, proof: Proof) -> str:
        """The id of the instance that signed it, by the role of this cluster's instances.

        Raises ProofRefused, and OSError where the cloud does not answer.
        """


def identified(
    table: StateTable, instance: str, pool: str, proof: Proof, token: Put, now_ms: int
) -> None:
    """Makes the instance's `token` good, in one commit with the proof's digest.

    Raises Refused: not_found for an instance that the cluster has not (or not yet, or not any more)
    in this pool, forbidden for a second proof.
    """
    key = Key(IDENTITIES, instance)
    known = table.get(key)
    if known is None:
        row = Key(instances_of(pool), instance)
        if not is_active(table, pool, instance):
            raise Refused("not_found", f"pool {pool} has no instance {instance}")
        body = json.dumps({"token_sha256": proof.token_sha256, "time_ms": now_ms}).encode()
        try:
            table.commit(
                (Put(key, 1, body, Expect.ABSENT), token, Check(row, Expect.PRESENT)),
            )
        except Conflict:
            known = table.get(key)
            if known is None:
                raise Refused("not_found", f"pool {pool} has lost {instance}") from None
        else:
            return
    if json.loads(known.body)["token_sha256"] != proof.token_sha256:
        log.critical("instance %s proved its identity a second time", instance)
        text = f"instance {instance} has proved its identity before, with another token"
        raise Refused("forbidden", text)


def is_active(table: StateTable, pool: str, instance: str) -> bool:
    """Whether the cluster has launched the instance for the pool and wants it still."""
    row = table.get(Key(instances_of(pool), instance))
    return row is not None and is_wanted(row)


def is_wanted(row: Row) -> bool:
    """Whether an instance's row says that nobody has begun to end it."""
    return decode_instance(row).state not in (InstanceState.TERMINATING, InstanceState.ENDED)
