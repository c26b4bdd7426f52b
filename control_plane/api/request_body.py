"""The base of the models of request bodies."""

from pydantic import BaseModel, ConfigDict


class RequestBody(BaseModel):
    """The base of the models of request bodies. Unknown fields and wrong types are refused.

    Schemas are not deferred as in `Answer`. FastAPI names the body after a parameter, and pydantic
    warns about the name when pydantic builds the schema. FastAPI silences the warning only while
    FastAPI builds the route.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
