"""The handle of an access token."""

from __future__ import annotations

from detcloud.client.resource import Field, Resource


class Token(Resource):
    """An access token of a user. The cluster stores only the digest of the secret."""

    id = Field[int]("The id of the token, which is not secret.")
    user = Field[str]("The user whose requests the token authorizes.")
    role = Field[str]("The role of the token: user, admin, metrics or join.")
    resource_pool = Field[str | None](
        "The pool that agents join with a token of the role join; None for other roles."
    )
    description = Field[str | None]("The purpose of the token; None without a description.")
    created_ms = Field[int]("The time of the creation, in epoch milliseconds.")
    expires_ms = Field[int | None](
        "The time of the expiry, in epoch milliseconds; None if the token never expires."
    )
    once = Field[bool]("Whether a join token is good for one agent only.")
    used_by = Field[str | None]("The agent that used the join token, or None.")
    revoked = Field[bool]("Whether the token was revoked.")

    @property
    def token(self) -> str | None:
        """The secret if `Client.create_token` returned this handle, otherwise None."""
        secret: str | None = self.data.get("token")
        return secret

    def revoke(self) -> None:
        """Revoke the token now, and every token that was created with this token."""
        self.data = self._client.delete(f"/tokens/{self.id}")
