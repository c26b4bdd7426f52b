"""The base of the models of request bodies."""

from pydantic import BaseModel, ConfigDict


class RequestBody(BaseModel):
    """The fields that a request may have, and no others.

    Not deferred: FastAPI names the body after a parameter, about which pydantic warns whoever makes
    the schema, and FastAPI silences that only while it makes the route.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
