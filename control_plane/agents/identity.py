"""Identities of instances: an instance proves once, with the help of its cloud, that it is the one
that the cluster launched.

The instance makes its own join token and proves the token's digest together with its identity. So
no answer holds a secret, a lost answer can be requested again, and the replay of a proof gains
nothing. A second proof of one instance with another digest is refused and logged as critical:
its sender has the instance's credentials.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from control_plane.actors.step import CommandRefused
from control_plane.fleet.records import InstanceState, instances_partition
from control_plane.fleet.rows import decode_instance
from control_plane.state.table import Check, Conflict, Expect, Key, Put, Row, StateTable

log = logging.getLogger(__name__)

IDENTITIES = "identities"


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of an instance, made with the help of its cloud.

    It covers `token_sha256` (hexadecimal) and the cluster's id, with the `purpose` behind it where
    the digest is of something else than a join token: so that no proof serves for two things.
    `fields` are what the instance sent besides: which there are is the cloud's, and whether they
    are right its verifier's.
    """

    token_sha256: str
    fields: Mapping[str, str]
    purpose: str = ""


class InvalidProof(Exception):
    """The proof is not valid; the message is for the instance's log."""


class IdentityVerifier(Protocol):
    """Verifies proofs of identity with the instances' cloud."""

    @property
    def cloud(self) -> str:
        """The name of the cloud in messages."""

    def verify_proof(self, proof: Proof) -> str:
        """The id of the instance that made a proof, which must be one of this cluster's instances.

        Raises pydantic.ValidationError for fields that are none of a proof of this cloud,
        InvalidProof for a proof that is not valid, and OSError if the cloud does not answer.
        """


def register_instance_token(
    table: StateTable, instance: str, pool: str, proof: Proof, token: Put, now_ms: int
) -> None:
    """Register the join `token` of an instance, in one commit with the digest that it proved.

    Raises CommandRefused: not_found for an instance that the pool does not have (yet, or any more),
    forbidden for a second proof with another token.
    """
    key = Key(IDENTITIES, instance)
    known = table.get(key)
    if known is None:
        row = Key(instances_partition(pool), instance)
        if not is_active_instance(table, pool, instance):
            raise CommandRefused("not_found", f"pool {pool} has no instance {instance}")
        body = json.dumps({"token_sha256": proof.token_sha256, "time_ms": now_ms}).encode()
        try:
            table.commit(
                (Put(key, 1, body, Expect.ABSENT), token, Check(row, Expect.PRESENT)),
            )
        except Conflict:
            known = table.get(key)
            if known is None:
                raise CommandRefused("not_found", f"pool {pool} no longer has {instance}") from None
        else:
            return
    if json.loads(known.body)["token_sha256"] != proof.token_sha256:
        log.critical("instance %s proved its identity a second time", instance)
        text = f"instance {instance} has already proved its identity, with a different token"
        raise CommandRefused("forbidden", text)


def is_active_instance(table: StateTable, pool: str, instance: str) -> bool:
    """Whether the cluster has launched the instance for the pool and is not ending it."""
    row = table.get(Key(instances_partition(pool), instance))
    return row is not None and is_active_row(row)


def is_booting_instance(table: StateTable, pool: str, instance: str) -> bool:
    """Whether the pool has the instance, and its agent has not connected yet."""
    row = table.get(Key(instances_partition(pool), instance))
    return row is not None and is_active_row(row) and decode_instance(row).connected_ms is None


def is_active_row(row: Row) -> bool:
    """Whether an instance is not being ended, by its row."""
    return decode_instance(row).state not in (InstanceState.TERMINATING, InstanceState.ENDED)
