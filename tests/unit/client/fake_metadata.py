"""Patches in the fake cluster: settings, and metadata with concurrent changes."""

from tests.unit.client.fake_refusal import Item, Refusal

KEPT = ("save_experiment_best", "save_trial_best", "save_trial_latest")
LIMITS = ("max_slots", "max_cost")
PATCHED = {"name", "description", "labels", "weight", "priority", *LIMITS, *KEPT}


class FakeMetadata:
    """Patches of metadata: the first `conflicts`, or all, meet a concurrent change."""

    def __init__(self) -> None:
        self.conflicts = 0
        self.refuses_all = False

    def patch(self, trials: list[Item], checkpoints: list[Item], path: str, body: Item) -> Item:
        kind, name = path.strip("/").split("/")
        items, key = (trials, "id") if kind == "trials" else (checkpoints, "uuid")
        patched = next(item for item in items if str(item[key]) == name)
        if self.conflicts:
            self.conflicts -= 1
            patched.update(metadata={"theirs": 1}, metadata_revision="b")
        if self.refuses_all or body["revision"] != patched.get("metadata_revision"):
            raise Refusal(409, "conflict", "was changed in the meantime")
        patched.update(metadata=body["metadata"])
        return dict(patched)
