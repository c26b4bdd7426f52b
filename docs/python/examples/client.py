"""Examples of docs/python/client.md. Tests run the script on a local cluster."""

# %% setup
from detcloud import Client

# %% Client
with Client() as client:
    for experiment in client.experiments(states=["finished"]):
        print(experiment.id, experiment.name, experiment.best_metric)

# %%
client = Client()

# %% Client.create_experiment
experiment = client.create_experiment("config.yaml", "model", overrides=["searcher.max_trials=3"])
print("created experiment", experiment.id)
experiment.wait()

# %% Client.check_experiment
for warning in client.check_experiment("config.yaml"):
    print(warning)

# %% Client.upload_model_code
digest = client.upload_model_code("model", on_progress=lambda sent, total: print(sent, "bytes"))

# %% Client.experiments
for experiment in client.experiments(
    filter="state:finished label:baseline", sort_by="metric", order_by="asc", limit=10
):
    print(experiment.id, experiment.best_metric)

# %% Client.experiment
experiment = client.experiment(1)
print(experiment.state, experiment.progress)

# %% Client.trial
trial = client.trial(1)
print(trial.hparams, trial.metric)

# %%
UUID = experiment.best_checkpoints()[0].uuid

# %% Client.checkpoint
checkpoint = client.checkpoint(UUID[:8])
print(checkpoint.steps_completed)

# %% Client.save_experiment_view
view = client.save_experiment_view("small rates", filter="lr<0.01", sort_by="metric")

# %% Client.experiment_views, Client.experiment_view
print([view.name for view in client.experiment_views()])
print(client.experiment_view("small rates").filter)

# %% Client.workspaces, Client.projects
for workspace in client.workspaces():
    for project in client.projects(workspace["workspace"]):
        print(workspace["workspace"], project["project"], project["experiments"])

# %% Client.agents, Client.agent
for agent in client.agents():
    print(agent.id, agent.name, len(agent.slots))
agent = client.agent(agent.id)

# %% Client.jobs
for job in client.jobs("default", limit=5):
    print(job.name, job.state)

# %%
experiment = client.create_experiment("config.yaml", "model", paused=True)
other = client.create_experiment("config.yaml", "model", paused=True)

# %% Client.job
job = client.job(experiment.job_id)
print(job.resource_pool)

# %% Client.update_jobs
changes = [{"job_id": experiment.job_id, "weight": 2.0}, {"job_id": other.job_id, "weight": 1.0}]
for job in client.update_jobs(changes):
    print(job.name, job.weight)

# %%
experiment.kill()
other.kill()

# %% Client.cost
report = client.cost("user", since="2026-11-01", until="2026-11-30")
for item in report["items"]:
    print(item["name"], item["cost"])

# %% Client.usage
report = client.usage("pool", since="2026-11-01", until="2026-11-30")
for item in report["items"]:
    print(item["name"], item["use_percent"], item["wasted"])

# %% Client.alarms
for alarm in client.alarms():
    print(alarm["alarm"], alarm["text"])

# %%
NAME = client.alarms(raised_only=False)[0]["alarm"]

# %% Client.alarm
alarm = client.alarm(NAME)
print(alarm["runbook"])

# %% Client.resource_pools, Client.resource_pool
print([pool.name for pool in client.resource_pools()])
pool = client.resource_pool("default")

# %% Client.set_resource_pool
pool = client.set_resource_pool("night", {"description": "runs at night"})

# %% Client.configure
changes = client.configure("pools.yaml", dry_run=True)
for change in changes["changes"]:
    print(change["resource_pool"], change["action"])

# %% Client.set_template
template = client.set_template("restarts", "max_restarts: 2\n")

# %% Client.templates, Client.template
print([template.name for template in client.templates()])
print(client.template("restarts").config)

# %% Client.create_schedule, Client.schedules, Client.schedule
schedule = client.create_schedule("config.yaml", "model", overrides=["schedule.cron=0 3 * * *"])
print([schedule.cron for schedule in client.schedules()])
print(client.schedule(schedule.id).next_ms)
schedule.delete()

# %% Client.create_report
report = client.create_report("Baselines", "# What we know\n\nSmall rates win.\n", sharing="read")

# %% Client.reports, Client.report
print([report.title for report in client.reports()])
print(client.report(report.id).text)

# %% Client.create_model
model = client.create_model("parabola", description="the minimum of a parabola", labels=["demo"])

# %% Client.models, Client.model
for model in client.models(label="demo", sort_by="last_updated_time", descending=True):
    print(model.name)
model = client.model("parabola")

# %% Client.create_token
token = client.create_token(description="a notebook", expires_days=30)
print(token.token)

# %% Client.tokens
for token in client.tokens():
    print(token.id, token.user, token.description)

# %% Client.whoami
identity = client.whoami()
print(identity["user"], identity["role"])

# %% Client.sign_in_link
print(client.sign_in_link())

# %% Client.overview
print(client.overview()["version"])

# %% Client.get, Client.items, Client.records
print(client.get("/experiments/1")["name"])
for item in client.items("/experiments", limit=3, sort_by="id"):
    print(item["id"])

# %% Client.post, Client.patch, Client.put, Client.delete
client.patch("/experiments/1", {"description": "the first try"})

# %% Client.close
client.close()
