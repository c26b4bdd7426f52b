"""The credentials of machines: tokens for repeated enrolments of a single installation.

The agent generates the credential and sends only its digest, so that no answer contains a secret.
The commit of the enrolment stores the digest. A join token that is good for one agent is bound to
the agent in the same commit. Each later enrolment may replace the credential.
"""

from dataclasses import dataclass, replace

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import decode_principal, encode_principal, token_key, token_put
from control_plane.errors import Code, RequestError, invalid
from control_plane.rows import agent_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Check, Delete, Expect, Key, Put, StateTable, Write


@dataclass(frozen=True)
class CredentialRecord:
    """The owner of an agent's name."""

    installation: str
    """The id of the work directory of the agent."""
    digest: str
    """The digest of the agent's credential, a key of the tokens' rows."""
    join_digest: str = ""
    """The digest of the join token that the agent used. "" if the token has no row."""


@dataclass(frozen=True)
class CredentialRequest:
    """The proof of the machine and the digest of the next credential in an enrolment."""

    agent: str
    pool: str
    installation: str
    """The id of the agent's work directory."""
    bearer_digest: str
    """The digest of the token of the request."""
    digest: str
    """The digest of the agent's next credential. "" keeps the present credential."""


_REPLACED = "the token was revoked or replaced meanwhile"
_CODEC = JsonCodec(agent_rows.CREDENTIAL, CredentialRecord)


def owns_credential(caller: Principal) -> bool:
    """Return whether the enrolment of a caller creates or replaces a credential.

    True for a join token that is good for one agent, and for the credential of a machine.
    """
    return caller.role is Role.JOIN and bool(caller.token_id or caller.installation)


def decode_credential(body: bytes) -> CredentialRecord:
    """Decode the body of the row with the owner of an agent's name."""
    return _CODEC.decode(body)


def find_credential(table: StateTable, agent: str) -> CredentialRecord | None:
    """Return the owner of an agent's name. Return None for an agent without a credential."""
    row = table.get(_key(agent))
    return None if row is None else _CODEC.decode(row.body)


def check_owner(table: StateTable, agent: str, installation: str) -> None:
    """Check that no other installation owns the agent's name; write nothing.

    Raises:
        RequestError: conflict, if another installation has a credential for the name.
    """
    record = find_credential(table, agent)
    if record is not None and record.installation != installation:
        text = (
            f"agent {agent} belongs to another machine; choose another --name, or remove the "
            f"former machine with `detcloud agent remove {agent}`"
        )
        raise RequestError(Code.CONFLICT, text)


def credential_writes(table: StateTable, request: CredentialRequest) -> tuple[Write, ...]:
    """Return the writes of an enrolment that replace the credential; commit nothing.

    The rows are read now, and the writes expect that these rows do not change. A repeated request
    changes nothing. A join token that is good for one agent is bound to this agent.

    Raises:
        RequestError: unauthenticated, if the token of the request is no longer valid. forbidden, if
            the token belongs to another agent or installation. conflict, as `check_owner`. invalid,
            if the first enrolment names no installation or no credential.
    """
    row = table.get(token_key(request.bearer_digest))
    if row is None:
        raise RequestError(Code.UNAUTHENTICATED, _REPLACED)
    principal = decode_principal(row.body)
    check_owner(table, request.agent, request.installation)
    unchanged = Check(row.key, row.revision)
    if principal.token_id and not principal.installation:
        if not request.installation or not request.digest:
            raise invalid("credential_sha256", "is missing; this join token needs a newer agent")
        bound = replace(principal, agent=request.agent, installation=request.installation)
        body = encode_principal(bound, row.body)
        binding = Put(row.key, row.revision + 1, body, row.revision, row.due_ms, row.expires)
        return (binding, *_replace(table, request, request.bearer_digest))
    if (principal.agent, principal.installation) != (request.agent, request.installation):
        text = f"this token was used by agent {principal.agent} and is good for one machine only"
        raise RequestError(Code.FORBIDDEN, text)
    if principal.token_id:
        # The answer to the first enrolment was lost, so that the agent sends the same request.
        record = find_credential(table, request.agent)
        if record is None or record.digest != request.digest:
            text = f"this token was used by agent {principal.agent}, which has a credential now"
            raise RequestError(Code.FORBIDDEN, text)
        return (unchanged,)
    if request.digest in ("", request.bearer_digest):
        return (unchanged,)
    return _replace(table, request, None)


def revocation_writes(table: StateTable, agent: str) -> tuple[Write, ...]:
    """Return the writes that revoke the credential of an agent; commit nothing.

    The join token that the agent used is revoked as well. Return () for an agent without a
    credential.
    """
    row = table.get(_key(agent))
    if row is None:
        return ()
    record = _CODEC.decode(row.body)
    digests = {record.digest, record.join_digest} - {""}
    tokens = [Delete(token_key(digest), Expect.ANYTHING) for digest in sorted(digests)]
    return (Delete(row.key, row.revision), *tokens)


def _replace(
    table: StateTable, request: CredentialRequest, join_digest: str | None
) -> tuple[Write, ...]:
    """Return the writes that store an agent's next credential and revoke the former credential.

    Args:
        table: the state table.
        request: the enrolment.
        join_digest: the digest of the join token of this enrolment. None for an enrolment with the
            credential itself, which keeps the recorded digest.

    Raises:
        RequestError: unauthenticated, if the token of the request is no longer the credential.
    """
    row = table.get(_key(request.agent))
    former = None if row is None else _CODEC.decode(row.body)
    if join_digest is None:
        if former is None or former.digest != request.bearer_digest:
            raise RequestError(Code.UNAUTHENTICATED, _REPLACED)
        join_digest = former.join_digest
    record = CredentialRecord(request.installation, request.digest, join_digest)
    holder = Principal(
        f"agent {request.agent}",
        Role.JOIN,
        request.pool,
        agent=request.agent,
        installation=request.installation,
    )
    revision, expected = (1, Expect.ABSENT) if row is None else (row.revision + 1, row.revision)
    body = _CODEC.encode(record, None if row is None else row.body)
    writes: list[Write] = [Put(_key(request.agent), revision, body, expected)]
    ended = set() if former is None else {former.digest, former.join_digest} - {"", join_digest}
    if request.digest not in ended:
        writes.append(token_put(request.digest, holder))
    ended.discard(request.digest)
    writes += [Delete(token_key(digest), Expect.ANYTHING) for digest in sorted(ended)]
    return tuple(writes)


def _key(agent: str) -> Key:
    """Return the key of the row with the owner of an agent's name."""
    return Key(agent_rows.CREDENTIAL.partition, agent)
