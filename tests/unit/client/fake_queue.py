"""Resource pools and job queue of the fake cluster, with a record of the requested changes."""

import re
from typing import Any

from tests.unit.client.fake_refusal import Item, Refusal, page

SCHEDULER = {
    "type": "fair_share",
    "preemption": False,
    "default_priority": 42,
    "fitting_policy": "best",
    "allow_heterogeneous_fits": False,
}


class FakeQueue:
    def __init__(self) -> None:
        self.pools = {name: fake_pool(name) for name in ("default", "gpus")}
        self.pools["gpus"]["scheduler"] = {**SCHEDULER, "type": "priority", "preemption": True}
        self.jobs = [fake_job(1, "73853c5c"), fake_job(2, "0d714127")]
        self.asked: list[tuple[str, Any]] = []
        # Without sums, the cluster is one of an older version.
        self.replacements: dict[str, Item] = {}

    def get(self, path: str, query: Item) -> Item | None:
        """Answer a read of pools and jobs; return None for other paths."""
        if path == "/resource-pools":
            return page(list(self.pools.values()), query)
        if found := re.fullmatch(r"/resource-pools/([^/]+)", path):
            return self._pool(found[1])
        if found := re.fullmatch(r"/resource-pools/([^/]+)/replacements", path):
            return self.replacements.get(found[1])
        if path == "/jobs":
            pool = query.get("resource_pool", "gpus")
            jobs = [job for job in self.jobs if job["resource_pool"] == pool]
            return page(jobs[::-1] if query.get("reverse") else jobs, query)
        if found := re.fullmatch(r"/jobs/([^/]+)", path):
            return self._job(found[1])
        return None

    def change(self, method: str, path: str, body: Any) -> Item | None:
        """Answer a change of pools and jobs; return None for other paths."""
        if found := re.fullmatch(r"/resource-pools/([^/]+)(?:/(drain|undrain))?", path):
            self.asked.append((f"{method} {path}", body))
            return self._change_pool(method, found[1], found[2])
        if path == "/cluster/configuration":
            return self._apply_configuration(body)
        if path == "/jobs":
            self.asked.append((path, body))
            return {"items": [self._change_job(change) for change in body["operations"]]}
        if found := re.fullmatch(r"/jobs/([^/]+)", path):
            self.asked.append((path, body))
            return self._change_job({"job_id": found[1], **body})
        return None

    def _change_pool(self, method: str, name: str, verb: str | None) -> Item:
        if method == "DELETE":
            if self._pool(name)["agents"]:
                raise Refusal(409, "conflict", f"pool {name} has 1 agent")
            return self.pools.pop(name)
        if verb:
            self._pool(name)["state"] = "DRAINING" if verb == "drain" else "OPEN"
        return self.pools.setdefault(name, fake_pool(name))

    def _apply_configuration(self, body: Item) -> Item:
        self.asked.append(("/cluster/configuration", body))
        if body["config"].startswith("bad"):
            detail = {"path": "bad", "line": 1, "message": "is not a known field"}
            raise Refusal(422, "invalid", "the cluster's configuration is not valid", [detail])
        changes = [
            {"resource_pool": "gpus", "action": "change", "fields": ["scheduler.type"]},
            {"resource_pool": "default", "action": "keep", "fields": []},
            {"resource_pool": "old", "action": "remove", "fields": []},
        ]
        return {
            "changes": changes,
            "shared": ["resource_manager"],
            "warnings": ["pool gpus: agent_reattach_enabled is not used"],
            "dry_run": body["dry_run"],
        }

    def _change_job(self, change: Item) -> Item:
        job = self._job(change["job_id"])
        if change.get("priority", 1) > 99:
            raise Refusal(422, "invalid", "priority must be between 1 and 99, not 100")
        kept = ("priority", "weight", "resource_pool")
        job.update({name: change[name] for name in kept if name in change})
        return job

    def _pool(self, name: str) -> Item:
        if name not in self.pools:
            raise Refusal(404, "not_found", f"Pool {name} not found")
        return self.pools[name]

    def _job(self, prefix: str) -> Item:
        for job in self.jobs:
            if job["job_id"].startswith(prefix) or str(job["experiment_id"]) == prefix:
                return job
        raise Refusal(404, "not_found", f"job {prefix} not found")


def fake_pool(name: str) -> Item:
    return {
        "name": name,
        "slots": 2,
        "free_slots": 1,
        "queued": 1,
        "running": 1,
        "agents": 0 if name == "gpus" else 1,
        "description": "",
        "scheduler": SCHEDULER,
        "state": "OPEN",
        "default_for": ["compute"] if name == "gpus" else ["aux"],
        "waits": "needs 1 slot, 0 free",
        "instances": 1,
        "offerings": [],
        "config": {"provider": {"type": "local"}},
        "jobs": 2,
        "instance_list": [fake_instance("local-1")],
        "costs": {"budget": 500.0, "instance_cost": 12.5, "idle_cost": 0.25},
        "fleet": {"waits": "", "trouble": "", "offerings": []},
    }


def fake_instance(id: str) -> Item:
    return {
        "id": id,
        "instance_type": "process",
        "zone": "",
        "market": "on_demand",
        "slots": 1,
        "price_per_hour": 0.0,
        "state": "RUNNING",
        "launched_ms": 0,
        "notice_ms": None,
        "reason": "",
    }


def fake_job(number: int, digits: str) -> Item:
    """Make a job: job 1 runs, other jobs wait."""
    runs = number == 1
    return {
        "job_id": f"{digits}-0000-4000-8000-000000000000",
        "experiment_id": number,
        "type": "TYPE_EXPERIMENT",
        "name": "first_job" if runs else "second_job",
        "user": "user1",
        "resource_pool": "gpus",
        "preferred_pools": [],
        "pool_moved_ms": None,
        "pool_move_reason": "",
        "scheduler": "priority",
        "state": "STATE_SCHEDULED" if runs else "STATE_QUEUED",
        "kind": "experiment",
        "condition": "running" if runs else "queued",
        "jobs_ahead": number - 1,
        "priority": 42,
        "weight": 1.0,
        "position": f"{1_640_995_260_000_000 + (number - 1) * 1_000_000}",
        "revision": "0123456789abcdef",
        "requested_slots": 1,
        "allocated_slots": int(runs),
        "is_preemptible": True,
        # 2022-01-01 00:01:00 UTC, and a second later for the next.
        "submitted_ms": 1_640_995_260_000 + (number - 1) * 1_000,
        "progress": 0.0,
        "metric": "loss",
        "smaller_is_better": True,
        "best_metric": None,
        "waits": "" if runs else "needs 1 slot, 0 free",
        "waits_since_ms": None if runs else 1_640_995_261_000,
        "expected_start_ms": None,
    }
