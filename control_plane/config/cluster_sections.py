"""The introduction and the sections of the reference of cluster configurations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from control_plane.config import (
    pools,
    providers,
)
from control_plane.config.alarms import Alarms
from control_plane.config.machine_checks import GangCheck, LogExclusion
from control_plane.config.quiet_hours import QuietHoursRule
from control_plane.config.retention import RetentionRules
from control_plane.config.run_limits import ExperimentLimitRules, RunLimitRules
from control_plane.config.section import Section
from control_plane.config.task_container_defaults import TaskContainerDefaults
from control_plane.config.webhooks import Smtp, Webhooks

CLUSTER_INTRODUCTION: Final = """\
# Cluster configuration reference

This page lists every field of a cluster configuration file, which describes the resource pools of a
cluster. [resource-pools.md](resource-pools.md) explains how to use pools.

| command | effect |
|---|---|
| `detcloud config check --cluster FILE` | checks the file |
| `detcloud cluster apply FILE` | applies the file to a running cluster |
| `detcloud up --config FILE` | starts a cluster with the file |

Fields that are left out have their defaults. `cluster apply` removes pools that are not in the
file, and refuses the file while such a pool is in use.

```yaml
resource_manager:
  default_compute_resource_pool: gpus
  default_aux_resource_pool: small
resource_pools:
  - pool_name: gpus
    description: spot instances, the most important first
    scheduler:
      type: priority
      preemption: true
    provider:
      type: local
      max_instances: 4
      max_idle_agent_period: 10m
  - pool_name: small
    scheduler:
      type: fair_share
    max_aux_containers_per_agent: 20
    task_container_defaults:
      preemption_timeout: 600
```

A duration is a text such as `20m`, `1h30m` or `90s`, or a number of seconds.
`python -m control_plane.config.cluster --reference` prints this page, which is made from the
code.
"""

CLUSTER_SECTIONS: Final[Sequence[tuple[str, str, type[Section]]]] = (
    ("Resource manager", "`resource_manager`: settings of all pools.", pools.ResourceManager),
    ("Resource pools", "An entry of `resource_pools`.", pools.ResourcePool),
    (
        "Schedulers",
        "`scheduler` of a pool or of the resource manager. A pool's scheduler replaces the "
        "resource manager's scheduler as a whole.",
        pools.Scheduler,
    ),
    (
        "Gang checks",
        "`gang_check` of a pool or of the resource manager: the "
        "[check of machines](log-policies.md#checks-of-gangs) before a trial on several machines "
        "starts.",
        GangCheck,
    ),
    (
        "Log exclusions",
        "`log_exclusion` of a pool or of the resource manager: "
        "[log policies](log-policies.md#exclude-machines-from-the-pool) close machines for all "
        "trials.",
        LogExclusion,
    ),
    (
        "Quiet hours",
        "The items of `quiet_hours` of a pool. See [quiet hours](scheduling.md#quiet-hours).",
        QuietHoursRule,
    ),
    (
        "Task container defaults",
        "`task_container_defaults` of a pool. They take precedence over the cluster's defaults. "
        "The configurations of experiments take precedence over both.",
        TaskContainerDefaults,
    ),
    (
        "Run limits",
        "`run_limits`: the defaults and the longest values of `idle_timeout` and `max_duration` of "
        "[commands, notebooks and shells](commands.md#limits).",
        RunLimitRules,
    ),
    (
        "Experiment limits",
        "`experiment_limits`: the defaults and the longest values of `idle_timeout`, "
        "`max_duration` and `max_trial_duration` of "
        "[experiments](manage.md#stop-continue-end). Running experiments keep "
        "their limits when the values change.",
        ExperimentLimitRules,
    ),
    (
        "Retention policy",
        "`retention_policy`: how long [logs and metrics](manage.md#delete-old-logs-and-metrics) of "
        "ended experiments are kept. Experiments keep their days when the defaults change.",
        RetentionRules,
    ),
    (
        "Alarms",
        "`alarms`: when the cluster raises its own [alarms](runbook/README.md). The tick checks "
        "the alarms every five minutes.",
        Alarms,
    ),
    ("Webhooks", "`webhooks`: the receivers that [webhooks](webhooks.md) may reach.", Webhooks),
    ("SMTP", "`webhooks.smtp`: the mail server of webhooks with the format `email`.", Smtp),
    ("Providers", "`provider` of a pool, which launches its agents.", providers.Provider),
    ("Offerings", "An entry of `provider.offerings`.", providers.OfferingConfig),
)
