"""`python -m local_cluster`: run a whole cluster on this machine until SIGTERM or SIGINT."""

import argparse
import ipaddress
import os
import re
import sys
from pathlib import Path
from urllib.parse import urlsplit

from control_plane.config.problems import ConfigInvalid
from control_plane.errors import RequestError
from control_plane.state.table import TableError
from local_cluster.backup_schedule import BackupSchedule
from local_cluster.clouds import CloudsRefused, choose_clouds
from local_cluster.cluster import serve
from local_cluster.home import HomeFolder, HomeInUse, HomeInvalid
from local_cluster.object_bucket import choose_files
from local_cluster.service import ServiceSettings
from local_cluster.state_move import choose_state
from local_cluster.trusted_proxies import Network, parse_network, parse_prefix

STATE_VARIABLE = "DETCLOUD_STATE"
"""The variable with the place of the state, as `choose_state` reads it."""


def main() -> int:
    """Run the server of an embedded cluster in the folder --home.

    Return the exit status: 0 after a requested stop, or 1 with the error on stderr if the server
    cannot start or fails. An example is a folder that another server uses. Invalid options end the
    process with status 2. All new files are readable by the owner only, since the process's umask
    is changed.
    """
    options = _options()
    os.umask(0o077)
    # Trials, which inherit the environment, must not get a password.
    state = os.environ.pop(STATE_VARIABLE, None)
    try:
        home = HomeFolder(options.home)
        with home.claim():
            if state is not None:
                _choose_state(home, state)
            with (
                home.state.claim(is_shared=True),
                home.state.claim_folder(home.load_or_create_id()),
            ):
                choose_files(home, options.files, options.files_credentials)
                if options.clouds is not None:
                    choose_clouds(home, options.clouds)
                serve(home, options.slots, options.port, options.config, _service_settings(options))
    except (HomeInvalid, HomeInUse, CloudsRefused) as error:
        return _print_error(str(error))
    except OSError as error:
        is_failed_write = error.errno is not None and error.filename is None
        return _print_error(f"{options.home}: {error.strerror}" if is_failed_write else str(error))
    except ConfigInvalid as error:
        return _print_error(
            "\n".join(problem.text(str(options.config)) for problem in error.problems)
        )
    except RequestError as error:
        return _print_error(f"{options.config} cannot be applied: {error.message}")
    except TableError as error:
        return _print_error(f"the state table {_state_name(home)} cannot be used: {error}")
    return 0


def _choose_state(home: HomeFolder, choice: str) -> None:
    """Let the state be at another place, and print to stderr that a state was moved.

    Raises HomeInvalid if the place cannot be used, and OSError.
    """
    try:
        is_moved = choose_state(home, choice)
    except TableError as error:
        raise HomeInvalid(f"--state cannot be used: {error}") from error
    if is_moved:
        print(f"the state was moved to {home.state.name}", file=sys.stderr)


def _state_name(home: HomeFolder) -> str:
    """Return the name of the place of the state for messages."""
    try:
        return home.state.name
    except TableError:
        return str(home.folder)


def _print_error(why: str) -> int:
    """Print an error to stderr, and return the exit status 1."""
    print(f"detcloud server: {why}", file=sys.stderr)
    return 1


def _service_settings(options: argparse.Namespace) -> ServiceSettings | None:
    """Return the settings of a server that other machines call.

    Return None without --listen. Raises HomeInvalid for options that do not fit together.
    """
    if options.listen is None:
        return None
    if (options.tls_cert is None) is not (options.tls_key is None):
        raise HomeInvalid("give --tls-cert and --tls-key together")
    if options.insecure_http and options.tls_cert is not None:
        raise HomeInvalid("give either --insecure-http or --tls-cert")
    host, port = options.listen
    return ServiceSettings(
        host,
        port,
        url=(options.url or "").rstrip("/"),
        certificate=options.tls_cert,
        key=options.tls_key,
        insecure_http=options.insecure_http,
        has_agent=not options.no_agent,
        proxies=tuple(options.proxy),
        backups=_backup_schedule(options),
        prefix=options.prefix or parse_prefix(urlsplit(options.url or "").path),
    )


def _backup_schedule(options: argparse.Namespace) -> BackupSchedule | None:
    """Return the schedule of backups. Return None without --backup-to."""
    if not options.backup_to:
        return None
    return BackupSchedule(options.backup_to, options.backup_every, options.backup_keep)


def _parse_period(text: str) -> int:
    """Return the milliseconds of a number with a unit: m, h or d. At least a minute."""
    match = re.fullmatch(r"([1-9][0-9]{0,4})([mhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a time such as 30m, 24h or 7d, not {text!r}")
    return int(match[1]) * {"m": 60, "h": 3600, "d": 86_400}[match[2]] * 1000


def _parse_positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number, at least 1, not {text!r}")
    return int(text)


def _parse_listen(text: str) -> tuple[str, int]:
    """Return the address and the port of `HOST:PORT`; an IPv6 address has brackets."""
    host, _, port = text.rpartition(":")
    try:
        ipaddress.ip_address(host.strip("[]"))
        return host.strip("[]"), int(port)
    except ValueError:
        text = f"must be an IP address and a port, such as 0.0.0.0:8470, not {text!r}"
        raise argparse.ArgumentTypeError(text) from None


def _parse_network(text: str) -> Network:
    try:
        return parse_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_prefix(text: str) -> str:
    try:
        return parse_prefix(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parse_url(text: str) -> str:
    """Return an address with http or https, and without a query."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise argparse.ArgumentTypeError(f"must be https://HOST[:PORT], not {text!r}")
    return text


def _options() -> argparse.Namespace:
    """Return the options of the command line. Invalid options end the process with status 2.

    The options are those of `serve`: `home` (the path of the data folder), `slots`, `port` and
    `config`, and the fields of ServiceSettings. Others are `files` and `files_credentials`, the
    choices of `choose_files`, and `clouds`, the choice of `choose_clouds`. Options that are
    not given are None or False.
    """
    parser = argparse.ArgumentParser(
        prog="python -m local_cluster", description="Run a cluster on this machine."
    )
    parser.add_argument("--home", type=Path, required=True, help="the cluster's data folder")
    parser.add_argument("--slots", type=int, help="use CPU slots instead of the detected devices")
    parser.add_argument("--port", type=int, help="where to listen; by default where it was")
    parser.add_argument("--files", help="the folder of objects and checkpoints, or a bucket")
    parser.add_argument("--files-credentials", type=Path, help="the credentials for the bucket")
    parser.add_argument("--config", type=Path, help="a cluster configuration to begin with")
    parser.add_argument("--clouds", help="a file with remote accounts, or none")
    group = parser.add_argument_group("a server that other machines call")
    group.add_argument("--listen", type=_parse_listen, help="the IP address and port, HOST:PORT")
    group.add_argument("--url", type=_parse_url, help="the address by which others call the server")
    group.add_argument("--tls-cert", type=Path, help="the certificate; by default self-signed")
    group.add_argument("--tls-key", type=Path, help="the key of --tls-cert")
    group.add_argument("--insecure-http", action="store_true", help="listen without TLS")
    group.add_argument(
        "--proxy",
        type=_parse_network,
        action="append",
        default=[],
        help="a reverse proxy, ADDRESS[/MASK], whose X-Forwarded headers count",
    )
    group.add_argument("--backup-to", help="a folder, s3://BUCKET/PREFIX or gs://BUCKET/PREFIX")
    group.add_argument("--backup-every", type=_parse_period, default="24h", help="such as 24h")
    group.add_argument("--backup-keep", type=_parse_positive, default=7, help="archives to keep")
    group.add_argument("--prefix", type=_parse_prefix, help="the prefix of paths at the proxy")
    group.add_argument("--no-agent", action="store_true", help="run no trials on this machine")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
