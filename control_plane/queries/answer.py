"""The base of the models of answers."""

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """An answer to a request, or a part of one.

    Its schema is made with the first answer of its type: most types are answered by few processes,
    and a function builds everything again each time it starts.
    """

    model_config = ConfigDict(defer_build=True)
