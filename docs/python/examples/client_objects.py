"""Examples of docs/python/objects.md. Tests run the script on a local cluster."""

# %%
from detcloud import Client

client = Client()
first = client.create_experiment("config.yaml", "model")
first.wait()
UUID = first.best_checkpoints()[0].uuid
experiment = client.create_experiment("config.yaml", "model", paused=True)
other = client.create_experiment("config.yaml", "model", paused=True)

# %% Job, Job.set_weight, Job.set_priority
job = client.job(experiment.job_id)
print(job.condition, job.waits)
job.set_weight(2.0)

# %% Job.move_to
client.set_resource_pool("night")
job.move_to("night")

# %%
client.set_resource_pool("queue", {"scheduler": {"type": "priority"}})
job.move_to("queue")
client.job(other.job_id).move_to("queue")

# %% Job.move_ahead_of, Job.move_behind
job.move_ahead_of(client.job(other.job_id))
job.move_behind(other.job_id)

# %% Job.change, JobChange
job.change({"priority": 10, "revision": job.revision})

# %%
experiment.kill()
other.kill()
model = client.create_model("minimum")

# %% Model, Model.register_version
version = model.register_version(UUID, name="first", comment="a small rate")
print(version.number, version.checkpoint_uuid)

# %% Model.set, Model.refresh
model.refresh()
model.set(description="the minimum of a parabola", labels=["demo"], revision=model.revision)

# %% Model.versions, Model.version
for version in model.versions():
    print(version.number, version.name)
newest = model.version()

# %% Model.move
model.move("vision")

# %% ModelVersion, ModelVersion.refresh, ModelVersion.checkpoint
newest.refresh()
print(newest.number, newest.checkpoint().steps_completed)

# %% ModelVersion.set
newest.set(comment="the best of two", metadata={"reviewed": True})

# %% ModelVersion.export
manifest = newest.export("exported")
print(manifest["load"])

# %% ModelVersion.delete
newest.delete()

# %% Model.archive, Model.unarchive
model.archive()
model.unarchive()

# %% Model.delete
model.delete()

# %%
report = client.create_report("Rates")

# %% Report, Report.set, Report.refresh
report.set(text="# Rates\n\nSmall rates win.\n", sharing="edit")
report.refresh()
print(report.text, report.updated_by)

# %% Report.delete
report.delete()

# %% ResourcePool, ResourcePool.set
pool = client.resource_pool("night")
pool.set(overrides=["description=runs at night"])
print(pool.free_slots, "of", pool.slots, "slots are free")

# %% ResourcePool.drain, ResourcePool.undrain
pool.drain()
pool.undrain()

# %% ResourcePool.replacements
print(pool.replacements(days=7)["causes"])

# %% ResourcePool.remove
pool.remove()

# %% Agent, Agent.disable, Agent.enable
[agent] = client.agents()
agent.disable(drain=True)
agent.enable()

# %% Agent.upgrade
if agent.behind and agent.updatable:
    agent.upgrade()

# %% Slot, Slot.disable, Slot.enable
slot = agent.slots[0]
print(slot.type, slot.allocation)
slot.disable()
slot.enable()

# %%
client.set_template("retries", "max_restarts: 1\n")

# %% Template, Template.set, Template.remove
template = client.template("retries")
template.set("max_restarts: 3\n")
print(template.config)
template.remove()

# %% Schedule, Schedule.refresh, Schedule.pause, Schedule.activate
schedule = client.create_schedule(
    "config.yaml",
    "model",
    overrides=["schedule.cron=0 3 * * *", "schedule.time_zone=Europe/Berlin"],
)
schedule.pause()
schedule.activate()
schedule.refresh()
print(schedule.next_ms, schedule.data["config"])

# %% Schedule.run_now, Schedule.delete
print(schedule.warnings, schedule.run_now(), schedule.runs[0]["outcome"])
schedule.delete()

# %% Token, Token.revoke
token = client.create_token(description="a notebook")
print(token.id, token.token)
token.revoke()

# %%
client.save_experiment_view("large rates", filter="lr>0.01")

# %% ExperimentView, ExperimentView.delete
view = client.experiment_view("large rates")
for experiment in client.experiments(filter=view.filter, columns=view.value_columns):
    print(experiment.id, experiment.data["values"])
view.delete()

# %%
client.close()
