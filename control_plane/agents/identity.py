"""Identities of instances: an instance proves that this cluster launched the instance.

The instance generates its own join token and proves the token's digest together with its identity,
with the help of its cloud. So no answer contains a secret, a lost answer can be requested again,
and a replayed proof has no use. A second proof of the same instance with another digest is refused
and logged as critical, because its sender has the instance's credentials.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from control_plane.actors.step import CommandRefused
from control_plane.fleet.records import InstanceState, instances_partition
from control_plane.fleet.rows import decode_instance
from control_plane.rows import agent_rows
from control_plane.state.table import Check, Conflict, Expect, Key, Put, Row, StateTable

log = logging.getLogger(__name__)

IDENTITIES = agent_rows.IDENTITY.partition
"""The partition of the state table with the digest that each instance proved."""


@dataclass(frozen=True, slots=True)
class Proof:
    """An instance's proof of identity, made with the help of the instance's cloud.

    The proof covers the digest, the cluster's id and `purpose`, so that no proof serves two
    purposes.
    """

    token_sha256: str
    """The digest that the instance proves, in hexadecimal: usually of its join token."""
    fields: Mapping[str, str]
    """The fields that the instance sent. The cloud's verifier defines and checks them."""
    purpose: str = ""
    """The use of the digest. Empty for a join token."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The instance that made a proof, as the cloud describes the instance."""

    id: str
    """The instance's id in the cluster."""
    uid: str = ""
    """The cloud's number of the instance; "" in a cloud that never gives an id twice."""
    zone: str = ""
    """The instance's zone; "" in a cloud whose proofs name no zone."""


class InvalidProof(Exception):
    """The proof is not valid. The message is written to the instance's log."""


class IdentityVerifier(Protocol):
    """A verifier that checks proofs of identity with the cloud of the instances."""

    @property
    def cloud(self) -> str:
        """The cloud's name in messages to users."""

    def verify_proof(self, proof: Proof) -> Signer:
        """Verify a proof and return the instance that made the proof.

        The proof must be of the account or role of this cluster's instances. The caller compares
        the signer with the launched instance (`check_signer`).

        Raises:
            pydantic.ValidationError: the fields do not have the form of this cloud's proofs.
            InvalidProof: the proof is not valid.
            OSError: the cloud does not answer.
        """


def check_signer(table: StateTable, pool: str, signer: Signer) -> None:
    """Check that the signer is the launched instance, not another instance with this id.

    In a cloud whose ids are names, another instance may have the name: in another zone, or after
    the end of the launched instance. Signers without a `uid`, and ids without a row, pass.

    Raises:
        CommandRefused: "forbidden", logged as critical, if the launched instance has another zone
            or number. "not_found" if the number of the launched instance is not recorded yet; a
            later attempt may succeed, because each pass of the provisioner records the numbers.
        TableError: the state table failed.
    """
    row = table.get(Key(instances_partition(pool), signer.id)) if signer.uid else None
    if row is None:
        return
    launched = decode_instance(row)
    if launched.zone and launched.zone != signer.zone:
        other = f"zone {signer.zone}, and the launched instance is in {launched.zone}"
    elif launched.uid and launched.uid != signer.uid:
        other = f"number {signer.uid}, and the launched instance has number {launched.uid}"
    elif not launched.uid:
        text = f"the number of instance {signer.id} is not known yet; try again in a minute"
        raise CommandRefused("not_found", text)
    else:
        return
    log.critical("another instance uses the name %s of pool %s: %s", signer.id, pool, other)
    raise CommandRefused("forbidden", f"another instance than {signer.id} signed: it has {other}")


def register_instance_token(
    table: StateTable, instance: str, pool: str, proof: Proof, token: Put, now_ms: int
) -> None:
    """Store an instance's join token and proved digest in a single commit.

    A repeated call with the same digest changes nothing. A second digest is also logged as
    critical, because its sender has the instance's credentials.

    Args:
        table: the state table.
        instance: the instance's id, which a verifier has proved.
        pool: the pool of the instance.
        proof: the verified proof.
        token: the write of the token's row.
        now_ms: the present time in epoch ms.

    Raises:
        CommandRefused: "not_found" if the pool has no such instance, or the instance is terminating
            or has ended. "forbidden" if the instance already proved another digest.
        TableError: the state table failed.
    """
    key = Key(IDENTITIES, instance)
    identity = table.get(key)
    if identity is None:
        instance_key = Key(instances_partition(pool), instance)
        if not is_active_instance(table, pool, instance):
            raise CommandRefused("not_found", f"pool {pool} has no instance {instance}")
        body = json.dumps({"token_sha256": proof.token_sha256, "time_ms": now_ms}).encode()
        try:
            table.commit(
                (Put(key, 1, body, Expect.ABSENT), token, Check(instance_key, Expect.PRESENT)),
            )
        except Conflict:
            identity = table.get(key)
            if identity is None:
                raise CommandRefused("not_found", f"pool {pool} no longer has {instance}") from None
        else:
            return
    if json.loads(identity.body)["token_sha256"] != proof.token_sha256:
        log.critical("instance %s proved its identity a second time", instance)
        text = f"instance {instance} has already proved its identity, with a different token"
        raise CommandRefused("forbidden", text)


def is_active_instance(table: StateTable, pool: str, instance: str) -> bool:
    """Return whether the pool has a row for the instance, neither terminating nor ended.

    Raises TableError.
    """
    row = table.get(Key(instances_partition(pool), instance))
    return row is not None and is_active_row(row)


def is_booting_instance(table: StateTable, pool: str, instance: str) -> bool:
    """Return whether the instance is active in the pool and the agent has not connected yet.

    False for an instance without a row. Raises TableError.
    """
    row = table.get(Key(instances_partition(pool), instance))
    return row is not None and is_active_row(row) and decode_instance(row).connected_ms is None


def is_active_row(row: Row) -> bool:
    """Return whether the instance of this row is neither terminating nor ended.

    Raises ValueError if the row is not valid.
    """
    return decode_instance(row).state not in (InstanceState.TERMINATING, InstanceState.ENDED)
