"""An instance of a cloud from its kernel's view: a separate network with a metadata service, and
the units of the boot script.

    cloud (169.254.169.254, fd00:ec2::254) ─── instance ─── guest with forwarded packets
"""

import gzip
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from control_plane.fleet.records import IntentRow, Market, Offering
from lambdas.aws.boot import user_data
from tests.emulators.server import missing, require_program, serving

METADATA = ("http://169.254.169.254/instance-id", "http://[fd00:ec2::254]/instance-id")
GOOGLE_METADATA = (METADATA[0], "http://[fd20:ce::254]/instance-id")
# Google's metadata address also serves as the name server.
GOOGLE_NAME_SERVER = (
    "http://169.254.169.254:53/instance-id",
    "http://[fd20:ce::254]:53/instance-id",
)
ADDRESSES = ("169.254.169.254/32", "fd00:ec2::254/128", "fd20:ce::254/128")
RenderScript = Callable[[IntentRow], bytes]
INSTANCE_ID = "i-0123456789abcdef0"
AGENT_UID, TRIAL_UID = 995, 1000
# Prints the content of a URL. A refused connection over IPv6 counts like a timeout.
FETCH = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=2).read().decode())
except OSError:
    print("nothing")
"""
# Pairs of devices for links: namespace, device and addresses at both ends.
LINKS = (
    (("cloud", "to-it", "10.97.0.1/24 fd97::1/64"), ("it", "eth0", "10.97.0.2/24 fd97::2/64")),
    (("it", "to-guest", "10.98.0.1/24 fd98::1/64"), ("guest", "eth0", "10.98.0.2/24 fd98::2/64")),
)
ROUTES = {"it": ("10.97.0.1", "fd97::1"), "guest": ("10.98.0.1", "fd98::1")}
BACK = (("10.98.0.0/24", "10.97.0.2"), ("172.17.0.0/16", "10.97.0.2"), ("fd98::/64", "fd97::2"))


@dataclass(frozen=True)
class Instance:
    """An instance.

    `name`: prefix of the namespaces' names. `users`: path of the instance's /etc/passwd. `script`:
    the boot script.
    """

    name: str
    users: Path
    script: str

    def command_inside(self, *command: str | Path, place: str = "it") -> list[str]:
        """Return the command that runs another on the instance, or in another `place`."""
        return ["nsenter", f"--net=/run/netns/{self.name}-{place}", *map(str, command)]

    def fetch(self, url: str, uid: int = 0, place: str = "it", group: Path | None = None) -> str:
        """Return the answer to a request of a URL by a process of user `uid`.

        `group`: the folder of the process's control group, or None for this process's group.
        """
        user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        fetch = self.command_inside(
            *user, sys.executable, "-I", "-S", "-c", FETCH, url, place=place
        )
        if group is not None:
            join = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
            fetch = ["sh", "-c", join, str(group), *fetch]
        return subprocess.run(fetch, capture_output=True, text=True, check=True).stdout.strip()

    def start(self, name: str) -> None:
        """Run the unit's ExecStart lines, with the names of the instance's own users."""
        known = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"')
        for line in directives(name, "ExecStart", self.script):
            command = self.command_inside(*known, self.users, *shlex.split(line.removeprefix("-")))
            subprocess.run(command, check=not line.startswith("-"))


def directives(unit: str, name: str, script: str = "") -> list[str]:
    """Return the values of the directive `name` in a unit of a boot script, by default of EC2's
    script.
    """
    text = script or boot_script()
    match = re.search(rf"/{unit}\.service\" <<'?UNIT'?\n(.*?)\nUNIT\n", text, re.DOTALL)
    assert match, f"the boot script writes no {unit}.service"
    return re.findall(rf"^{name}=(.*)$", match[1], re.MULTILINE)


def boot_script(make: Callable[[str, str, str], RenderScript] = user_data) -> str:
    """Return the boot script of an instance of any pool, in the cloud of `make`."""
    offering = Offering("g5/a/spot", "g5.xlarge", "a", Market.SPOT, 1)
    launch = IntentRow("intent-1", "detcloud-vision", "gpus", offering, 1, "t" * 40, 1_000, "{}")
    place = "https://detcloud-vision-objects.s3.eu-central-1.amazonaws.com/agent-code"
    made = make("https://api.example", "detcloud-vision", place)(launch)
    return (gzip.decompress(made) if made.startswith(b"\x1f\x8b") else made).decode()


@contextmanager
def instance(folder: Path, script: str = "") -> Iterator[Instance]:
    """Boot an instance up to where nothing of ours has begun; EC2's unless a script is given."""
    for program in ("ip", "iptables", "ip6tables"):
        places = (Path("/usr/sbin", program), Path("/sbin", program))
        remedy = "`apt-get install iproute2 iptables` installs it"
        require_program(program, *places, remedy=remedy)
    if os.getuid() != 0:
        missing("iptables", "only root makes networks")
    users = folder / "passwd"
    users.write_text(
        "".join(
            f"{name}:x:{uid}:{uid}::/:/bin/sh\n"
            for name, uid in (("root", 0), ("detcloud", AGENT_UID), ("ubuntu", TRIAL_UID))
        )
    )
    made = Instance(f"detcloud-{os.getpid()}-{folder.name}", users, script or boot_script())
    with ExitStack() as cleanup:
        for place in ("cloud", "it", "guest"):
            _namespace(f"{made.name}-{place}", cleanup)
        _link_up(made)
        (folder / "instance-id").write_text(INSTANCE_ID)
        for port in ("80", "53"):
            serve = [sys.executable, "-m", "http.server", port, "--bind", "::", "-d", str(folder)]

            def answers(port: str = port) -> None:
                if made.fetch(f"http://169.254.169.254:{port}/instance-id") != INSTANCE_ID:
                    raise OSError("no metadata")

            service = made.command_inside(*serve, place="cloud")
            cleanup.enter_context(serving(service, answers, folder / f"metadata-{port}.log"))
        yield made


def _namespace(name: str, cleanup: ExitStack) -> None:
    done = _ip("netns", "add", name, check=False)
    if done.returncode != 0:
        missing("iptables", f"this machine makes no networks: {done.stderr.strip()}")
    cleanup.callback(_ip, "netns", "delete", name)


def _link_up(made: Instance) -> None:
    def namespace(place: str) -> tuple[str, str]:
        return ("-n", f"{made.name}-{place}")

    for near, far in LINKS:
        ends = [["name", device, "netns", namespace(place)[1]] for place, device, _ in (near, far)]
        _ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for place, device, addresses in (near, far):
            for address in addresses.split():
                _ip(*namespace(place), "address", "add", address, "dev", device, *_flags(address))
            _ip(*namespace(place), "link", "set", device, "up")
            _ip(*namespace(place), "link", "set", "lo", "up")
    for address in ADDRESSES:
        _ip(*namespace("cloud"), "address", "add", address, "dev", "to-it", *_flags(address))
    for place, gateways in ROUTES.items():
        for gateway in gateways:
            _ip(*namespace(place), "route", "add", "default", "via", gateway)
    for network, gateway in BACK:
        _ip(*namespace("cloud"), "route", "add", network, "via", gateway)
    forwards = "echo 1 | tee /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv6/conf/all/forwarding"
    _run(made.command_inside("sh", "-c", forwards))


def _flags(address: str) -> Sequence[str]:
    """Return the flag that spares an address of version 6 a second of checks."""
    return ("nodad",) if ":" in address else ()


def _ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    program = next((name for name in ("/usr/sbin/ip", "/sbin/ip") if Path(name).exists()), "ip")
    return _run([program, *arguments], check=check)


def _run(command: Sequence[str], check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
    return done
