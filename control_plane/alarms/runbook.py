"""The places of the runbook's pages. Each alarm has a page. Pure."""

FOLDER = "docs/runbook"


def runbook_page(alarm: str, base_url: str = "") -> str:
    """Return the place of an alarm's page in the runbook.

    The place is a URL below `base_url`. Without `base_url`, it is the path in detcloud's sources,
    like `docs/runbook/lag.md`.
    """
    return f"{base_url.rstrip('/') or FOLDER}/{alarm}.md"
