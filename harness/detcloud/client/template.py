"""The handle of a configuration template."""

from __future__ import annotations

from detcloud.client.resource import Field, Resource, path_segment


class Template(Resource):
    """A partial configuration that supplies settings missing in an experiment's configuration."""

    name = Field[str]("The name: 1 to 64 of the characters A-Za-z0-9._-")
    config = Field[str]("The YAML text of the template.")
    created_ms = Field[int]("The time of the creation, in epoch milliseconds.")
    updated_ms = Field[int]("The time of the last change, in epoch milliseconds.")
    user = Field[str]("The user who made the last change.")

    def set(self, config: str) -> None:
        """Replace the YAML text, and update this handle."""
        self.data = self._client.put(template_path(self.name), {"config": config})

    def remove(self) -> None:
        """Delete the template. Experiments that were created with the template are not changed."""
        self._client.delete(template_path(self.name))


def template_path(name: str) -> str:
    """Return the template's path below /api/v1. Raises DetcloudError for an impossible name."""
    return f"/templates/{path_segment(name)}"
