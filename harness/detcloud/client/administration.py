"""The requests about the cluster itself: pools, alarms and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detcloud.client.config_text import read_config_text
from detcloud.client.connection import Connection
from detcloud.client.records import AppliedConfiguration, Identity, Overview
from detcloud.client.resource import path_segment
from detcloud.client.resource_pool import ResourcePool, pool_path, put_pool
from detcloud.client.token import Token


class Administration(Connection):
    """The requests about the cluster itself: pools, alarms and tokens. A base of Client."""

    def alarms(self, *, raised_only: bool = True) -> list[dict[str, Any]]:
        """Return the alarms that the cluster decides, by name and pool.

        Alarms of the cloud, for example that the cluster's tick does not run, are not included.

        Args:
            raised_only: whether to leave out alarms that are pending, clear or off.
        """
        state = None if raised_only else "all"
        found: list[dict[str, Any]] = self.get("/alarms", state=state)["items"]
        return found

    def alarm(self, name: str) -> dict[str, Any]:
        """Return the states of an alarm, and the alarm's page of the runbook in Markdown.

        Raises:
            detcloud.shared.http.ApiError: `not_found` for an unknown alarm.
        """
        found: dict[str, Any] = self.get(f"/alarms/{path_segment(name)}")
        return found

    def resource_pools(self) -> list[ResourcePool]:
        """Return all pools."""
        return [ResourcePool(self, item) for item in self.items("/resource-pools")]

    def resource_pool(self, name: str) -> ResourcePool:
        """Return the pool with this name."""
        return ResourcePool(self, self.get(pool_path(name)))

    def set_resource_pool(
        self,
        name: str,
        config: str | Path | Mapping[str, Any] | None = None,
        *,
        overrides: Sequence[str] = (),
    ) -> ResourcePool:
        """Create or change a pool, and return the pool. Admins only.

        Args:
            name: the name of the pool.
            config: all fields as in the cluster configuration file: the path of a YAML file, or a
                mapping. None for the pool's present fields, or for no fields of a new pool.
            overrides: changes of these fields as `a.b=value`, with values in YAML.

        Raises:
            DetcloudError: the file cannot be read, or the mapping is no plain JSON.
        """
        return ResourcePool(self, put_pool(self, name, config, overrides))

    def configure(
        self, config: str | Path | Mapping[str, Any], *, dry_run: bool = False
    ) -> AppliedConfiguration:
        """Make the pools match a cluster configuration, and return the changes. Admins only.

        Missing pools are removed; if one is in use, the file is refused and nothing changes.

        Args:
            config: the path of a cluster configuration file, or a mapping with the same fields.
            dry_run: whether to compute the changes only.

        Raises:
            DetcloudError: the file cannot be read, or the mapping is no plain JSON.
        """
        body = {"config": read_config_text(config), "dry_run": dry_run}
        applied: AppliedConfiguration = self.put("/cluster/configuration", body)
        return applied

    def tokens(self) -> list[Token]:
        """Return the tokens of all users to an admin, and the caller's own tokens to others."""
        return [Token(self, item) for item in self.items("/tokens")]

    def create_token(
        self,
        user: str | None = None,
        *,
        role: str | None = None,
        resource_pool: str | None = None,
        description: str | None = None,
        expires_days: int | None = None,
        expires_minutes: int | None = None,
        once: bool | None = None,
    ) -> Token:
        """Create a token. Only the returned handle has the secret.

        Args:
            user: the user; None for the caller.
            role: `user`, `admin`, `metrics` or `join`. A `join` token can only enrol agents in
                `resource_pool`. A `metrics` token can only read the metrics of the cluster.
            resource_pool: the pool of a `join` token.
            description: the purpose, for lists.
            expires_days: the days until the token expires, 1 to 365. None: the token expires with
                this client's token, or never.
            expires_minutes: the lifetime in minutes, in place of `expires_days`.
            once: whether a `join` token is good for one agent only. Such a token expires after an
                hour, unless the call names a lifetime.
        """
        fields = {
            "user": user,
            "role": role,
            "resource_pool": resource_pool,
            "description": description,
            "expires_days": expires_days,
            "expires_minutes": expires_minutes,
            "once": once,
        }
        body = {name: value for name, value in fields.items() if value is not None}
        return Token(self, self.post("/tokens", body))

    def whoami(self) -> Identity:
        """Return the user and the role of this client's token."""
        identity: Identity = self.get("/whoami")
        return identity

    def sign_in_link(self, page: str | None = None) -> str:
        """Create a link that signs a browser in as the token's user: once, within five minutes.

        Args:
            page: the address of a copy of the page; None for the cluster's own page.
        """
        path: str = self.post("/sign-in-codes")["path"]
        return (
            self.http.base_url + path
            if page is None
            else page.partition("#")[0] + path[path.index("#") :]
        )

    def overview(self) -> Overview:
        """Return the cluster's id and version, and the resource pools."""
        overview: Overview = self.get("/cluster")
        return overview
