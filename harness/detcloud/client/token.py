"""The handle of an access token."""

from __future__ import annotations

from detcloud.client.resource import Field, Resource


class Token(Resource):
    """An access token of a user. The cluster stores only the digest of the secret."""

    id = Field[int]("The token's id, which is no secret.")
    user = Field[str]("The user whose requests it makes.")
    role = Field[str]("user, admin or join.")
    resource_pool = Field[str | None]("The pool that agents join with it, of the role join.")
    description = Field[str | None]("What it is for.")
    created_ms = Field[int]("When it was made, epoch milliseconds.")
    expires_ms = Field[int | None]("When it stops working, epoch milliseconds; None for never.")
    revoked = Field[bool]("Whether it was revoked.")

    @property
    def token(self) -> str | None:
        """The secret if `Client.create_token` returned this handle, otherwise None."""
        secret: str | None = self.data.get("token")
        return secret

    def revoke(self) -> None:
        """Revoke the token now, and every token that was created with this token."""
        self.data = self._client.delete(f"/tokens/{self.id}")
