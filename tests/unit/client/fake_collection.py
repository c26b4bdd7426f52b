"""Previews of deletions of a fake cluster; each deletion takes a second."""

from tests.unit.client.fake_refusal import Item


def collection_preview(checkpoints: list[Item], query: Item) -> Item:
    """Return the preview of a collection that keeps the first `save_trial_latest` checkpoints."""
    kept = 0 if "delete_experiment" in query else int(query.get("save_trial_latest", 1))
    gone = checkpoints[kept:]
    return {
        "delete": gone[:500],
        "delete_count": len(gone),
        "delete_files": sum(item["files"] + 1 for item in gone),
        "delete_bytes": sum(item["size_bytes"] for item in gone),
        "delete_seconds": 1,
        "keep_count": len(checkpoints) - len(gone),
        "keep_bytes": sum(item["size_bytes"] for item in checkpoints[:kept]),
    }


def deletion_preview(checkpoint: Item) -> Item:
    """Return the preview of the deletion of a checkpoint; a pinned checkpoint has a problem."""
    return {
        "uuid": checkpoint["uuid"],
        "delete_files": checkpoint["files"] + 1,
        "delete_bytes": checkpoint["size_bytes"],
        "delete_seconds": 1,
        "problem": "eve pinned it" if checkpoint["pinned"] else "",
    }
