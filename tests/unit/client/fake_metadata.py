"""Patches in the cluster of one process: settings, and metadata that others change, too."""

from tests.unit.client.fake_refusal import Item, Refusal

KEPT = ("save_experiment_best", "save_trial_best", "save_trial_latest")
LIMITS = ("max_slots", "max_cost")
PATCHED = {"name", "description", "labels", "weight", "priority", *LIMITS, *KEPT}


class FakeMetadata:
    """Changes that somebody else comes before, so many or all."""

    def __init__(self) -> None:
        self.conflicts = 0
        self.refuses_all = False

    def patch(self, trials: list[Item], checkpoints: list[Item], path: str, body: Item) -> Item:
        kind, name = path.strip("/").split("/")
        items, key = (trials, "id") if kind == "trials" else (checkpoints, "uuid")
        found = next(item for item in items if str(item[key]) == name)
        if self.conflicts:
            self.conflicts -= 1
            found.update(metadata={"theirs": 1}, metadata_revision="b")
        if self.refuses_all or body["revision"] != found.get("metadata_revision"):
            raise Refusal(409, "conflict", "was changed in the meantime")
        found.update(metadata=body["metadata"])
        return dict(found)
