"""A handle on one access token."""

from __future__ import annotations

from detcloud.client.resource import Field, Resource


class Token(Resource):
    """A token of a user; the cluster stores only its digest."""

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
        """The secret itself, on the token that `Client.create_token` returned and there only."""
        secret: str | None = self.data.get("token")
        return secret

    def revoke(self) -> None:
        """Ends the token at once."""
        self.data = self._client.delete(f"/tokens/{self.id}")
