"""A handle on one template."""

from __future__ import annotations

from detcloud.client.resource import Field, Resource, path_segment


class Template(Resource):
    """A part of a configuration that experiments may complete theirs with."""

    name = Field[str]("The name, 1 to 64 of A-Za-z0-9._-")
    config = Field[str]("The YAML text.")
    created_ms = Field[int]("When it was first set, epoch milliseconds.")
    updated_ms = Field[int]("When it was last set, epoch milliseconds.")
    user = Field[str]("Who set it last.")

    def set(self, config: str) -> None:
        """Replaces the YAML text."""
        self.data = self._client.set_template(self.name, config).data

    def remove(self) -> None:
        """Deletes the template; experiments made with it keep what they took from it."""
        self._client.delete(template_path(self.name))


def template_path(name: str) -> str:
    """The template's path below the API's base path."""
    return f"/templates/{path_segment(name)}"
