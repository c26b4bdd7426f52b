"""Base class of the API's answers."""

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Base model of an API answer or of a part of an answer.

    Pydantic builds the schema of a subclass when the process first creates an instance. A cloud
    function that answers few types therefore starts faster.
    """

    model_config = ConfigDict(defer_build=True)
