"""The SSH server of a connection: keys, authentication, forwarding and sessions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

from detcloud.launch.ssh.sessions import run_session

LOGIN_SECONDS_MAX = 60
_ALGORITHM = "ssh-ed25519"
# OpenSSH's server has the same limit by default, `GatewayPorts no`.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class HostKey:
    """The key that identifies an allocation."""

    private: asyncssh.SSHKey = field(repr=False)
    public: str
    """The public key in OpenSSH's form, without a comment."""


def load_or_create_host_key(path: Path) -> HostKey:
    """Return the key of the file. Create the file first if it is missing.

    Servers that start at once agree on a key: the first one creates the file. Only the trial's user
    can read the file. Raise OSError if the file cannot be created or read.
    """
    if not path.exists():
        new = path.with_name(f".{path.name}.{os.getpid()}")
        key = asyncssh.generate_private_key(_ALGORITHM)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.export_private_key())
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
        new.unlink()
    private = asyncssh.read_private_key(path)
    public = private.export_public_key().decode()
    return HostKey(private, " ".join(public.split()[:2]))


def serve_connection(connection: socket.socket, host_key: HostKey, public_key: str) -> None:
    """Serve SSH on a connection until the end. Only the holder of `public_key` gets in."""
    with contextlib.suppress(OSError, asyncssh.Error):
        asyncio.run(_serve(connection, host_key, public_key))


async def _serve(connection: socket.socket, host_key: HostKey, public_key: str) -> None:
    allowed = asyncssh.import_public_key(public_key)
    served = await asyncssh.run_server(
        connection,
        server_factory=lambda: _Server(allowed),
        server_host_keys=[host_key.private],
        process_factory=run_session,
        sftp_factory=_FileServer,
        allow_scp=True,
        agent_forwarding=True,
        x11_forwarding=False,
        # Bytes pass unchanged, and the terminal of the session edits lines.
        encoding=None,
        line_editor=False,
        login_timeout=LOGIN_SECONDS_MAX,
        # Files of the image must not change the server.
        config=[],
    )
    await served.wait_closed()


class _FileServer(asyncssh.SFTPServer):
    """The server of files. Relative paths begin in the trial's working directory."""

    def exit(self) -> None:
        """Send the exit code, without which OpenSSH's `scp` reports a failure."""
        with contextlib.suppress(OSError):
            self.channel.exit(0)


class _Server(asyncssh.SSHServer):
    """The rules of the server. The allocation's user may do what a terminal allows anyway."""

    def __init__(self, allowed: asyncssh.SSHKey) -> None:
        self._allowed = allowed

    def begin_auth(self, username: str) -> bool:
        """Require authentication for any name, since all sessions run as the trial's user."""
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        """Accept only the key of the connection's first line."""
        return bool(key.public_data == self._allowed.public_data)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> bool:
        """Allow `ssh -L` and `ssh -D` to all places."""
        return True

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        """Allow `ssh -R` on this machine's own address only."""
        return listen_host in _LOOPBACK

    def unix_server_requested(self, listen_path: str) -> bool:
        return True
