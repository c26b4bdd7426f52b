"""New experiments, trials and checkpoints of a fake cluster, with the fields of docs/api.md."""

from tests.unit.client.fake_metadata import KEPT, LIMITS
from tests.unit.client.fake_refusal import Item


def new_experiment(number: int, tree: Item, body: Item, warnings: list[str]) -> Item:
    """Make an experiment with the configuration `tree` from the request `body`."""
    return {
        "id": number,
        "name": tree.get("name", "unnamed"),
        "state": "PAUSED" if body.get("paused") else "ACTIVE",
        "user": "ada",
        "resource_pool": "default",
        "preferred_pools": [],
        "waits_since_ms": None,
        "pool_moved_ms": None,
        "pool_move_reason": "",
        "searcher": "single",
        "metric": "validation_loss",
        "smaller_is_better": True,
        "description": "",
        "labels": [],
        "job_id": "j",
        "archived": False,
        "seed": 7,
        **dict.fromkeys(LIMITS),
        "cost": 0.0,
        "weight": 1.0,
        "priority": None,
        "warnings": warnings,
        **dict.fromkeys(KEPT, 1),
        "code_sha256": body.get("model_code"),
        "message": None,
        "trials": {"requested": 2, "running": 2, "completed": 0, "errored": 0},
        "progress": 0.0,
        "best_metric": None,
        "best_trial_id": None,
        "created_ms": 0,
        "ended_ms": None,
        "config": tree,
        "submitted_config": tree,
        "forked_from": body.get("forked_from"),
        "asked": body,
    }


def new_trial(trial_id: int, experiment_id: int, number: int) -> Item:
    """An active trial that has not trained yet."""
    return {
        "id": trial_id,
        "experiment_id": experiment_id,
        "number": number,
        "state": "ACTIVE",
        "hparams": {"lr": 0.1 / (number + 1), "net": {"layers": 3}},
        "steps_completed": 0,
        "target_steps": 200,
        "metric": None,
        "best_metric": None,
        "restarts": 0,
        "counted_restarts": 0,
        "restart_window_ms": None,
        "ends_ms": None,
        "losses": 0,
        "recent_losses": [],
        "seed": 11,
        "message": None,
        "warm_start": None,
        "latest_checkpoint": None,
        "allocation": None,
        "created_ms": 0,
        "ended_ms": None,
    }


def new_checkpoint(uuid: str, contents: dict[str, bytes]) -> Item:
    """Make a complete checkpoint of trial 1 with the files `contents`."""
    return {
        "uuid": uuid,
        "trial_id": 1,
        "experiment_id": 1,
        "steps_completed": 100,
        "state": "COMPLETED",
        "size_bytes": sum(map(len, contents.values())),
        "files": len(contents),
        "metadata": {},
        "metric": 0.5,
        "created_ms": 1000,
        "uploaded_by": None,
        "pinned": False,
        "pinned_by": {"users": [], "versions": [], "experiments": []},
    }
