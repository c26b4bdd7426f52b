"""A container of Azure Blob Storage, which no cluster can use yet."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from control_plane.checkpoint_stores.store_type import StoreType
from control_plane.config.section import Secret, refuse
from control_plane.config.storage import CheckpointStorage, Url
from control_plane.field_types import Text


class Azure(CheckpointStorage):
    """Azure Blob Storage, reached by a connection string or by an account's URL."""

    type: Literal["azure"]
    container: Text
    """The container."""
    connection_string: Secret | None = None
    """How it is reached; or else account_url."""
    account_url: Url | None = Field(default=None, validate_default=True)
    """How it is reached; or else connection_string."""
    credential: Secret | None = None
    """For account_url, instead of the environment's."""

    @field_validator("account_url", "credential")
    @classmethod
    def _check_alone(cls, value: Any, info: ValidationInfo) -> Any:
        connected = info.data.get("connection_string", "refused") is not None
        if value is not None and connected:
            refuse("must not be given beside connection_string", "keep one of them", shown=False)
        if value is None and not connected and info.field_name == "account_url":
            refuse("is required unless connection_string is given")
        return value


SPEC = StoreType[Azure](name="azure", listing_order=50, options=Azure)
