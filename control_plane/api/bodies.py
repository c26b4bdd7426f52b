"""The models of what requests and answers hold."""

from pydantic import BaseModel, ConfigDict


class Body(BaseModel):
    """What an answer holds, or a part of it.

    Its schema is made with the first answer of its kind: most of the kinds are answered by few
    processes, and a function makes everything anew each time it starts.
    """

    model_config = ConfigDict(defer_build=True)


class RequestBody(BaseModel):
    """What a request may hold, and nothing else.

    Not deferred: FastAPI names the body after a parameter, about which pydantic warns whoever makes
    the schema, and FastAPI silences that only while it makes the route.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
