"""The handle of a report."""

from __future__ import annotations

from detcloud.client.resource import Field, Resource, path_segment


class Report(Resource):
    """A report: a text in Markdown with charts, which users write for other users."""

    id = Field[int]("The id.")
    title = Field[str]("The title: 1 to 200 printable characters.")
    user = Field[str]("The owner, who created the report.")
    sharing = Field[str]("`private`; `read`, for all users to read; or `edit`, also to change.")
    revision = Field[int]("The revision for `set(revision=...)`; each change increases the number.")
    created_ms = Field[int]("The time of the creation, in epoch milliseconds.")
    updated_ms = Field[int]("The time of the last change, in epoch milliseconds.")
    updated_by = Field[str]("The user who made the last change.")

    @property
    def text(self) -> str:
        """The Markdown. A handle of a list reads the report from the cluster at first use."""
        if "text" not in self.data:
            self.refresh()
        text: str = self.data["text"]
        return text

    def refresh(self) -> None:
        """Read all fields of this handle from the cluster again."""
        self.data = self._client.get(report_path(self.id))

    def set(
        self,
        *,
        text: str | None = None,
        title: str | None = None,
        sharing: str | None = None,
        revision: int | None = None,
    ) -> None:
        """Change the text, the title or the sharing, and update this handle.

        A value that is None stays as it is in this handle.

        Args:
            text: the Markdown.
            title: the title: 1 to 200 printable characters.
            sharing: `private`, `read` or `edit`.
            revision: the revision that the change is based on, by default the revision of this
                handle.

        Raises:
            detcloud.shared.http.ApiError: `conflict`, if the report has another revision. The
                message names the user who changed the report.
        """
        body = {
            "text": self.text if text is None else text,
            "title": self.title if title is None else title,
            "sharing": self.sharing if sharing is None else sharing,
            "revision": self.revision if revision is None else revision,
        }
        self.data = {**self._client.put(report_path(self.id), body), "text": body["text"]}

    def delete(self) -> None:
        """Delete the report. The experiments in the report are not changed."""
        self._client.delete(report_path(self.id))


def report_path(id: int) -> str:
    """Return the report's path below /api/v1. Raises DetcloudError for an impossible id."""
    return f"/reports/{path_segment(id)}"
