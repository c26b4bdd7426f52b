"""The places of the runbook's pages. Each alarm has a page. Pure."""


def runbook_page(alarm: str, base_url: str = "", cluster_url: str = "") -> str:
    """Return the place of an alarm's page in the runbook, for notifications.

    The place is a URL below `base_url`, like `https://wiki.example.com/runbook/lag.md`. Without
    `base_url`, the place is the page at `cluster_url`. Without both, it is the command that prints
    the page, also if the cluster does not answer.

    Args:
        alarm: the name of the alarm.
        base_url: the URL of a team's copy of the runbook, or "".
        cluster_url: the URL of the cluster's API, which serves the web page, or "".
    """
    if base_url:
        return f"{base_url.rstrip('/')}/{alarm}.md"
    if cluster_url:
        return f"{cluster_url.rstrip('/')}/ui/#/alarms/{alarm}"
    return f"detcloud alarm describe {alarm}"
