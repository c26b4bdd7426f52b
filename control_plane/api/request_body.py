"""The base of the models of request bodies."""

from pydantic import BaseModel, ConfigDict


class RequestBody(BaseModel):
    """The fields that a request may have, and no others.

    Not deferred: FastAPI names the body after a parameter. Pydantic warns of that when the schema
    is built, and FastAPI silences the warning only while it builds the route.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
