#!/bin/sh
# Installs the agent of a detcloud cluster on this machine. The cluster serves this script.
# `detcloud agent join-line` prints the command that downloads and starts the script.
set -eu

is_new_enough() {
    "$1" -I -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# A Python in the home of root or of another user cannot be executed by the agent's user.
is_private() {
    [ "$(id -u)" = 0 ] || return 1
    case "$(readlink -f "$1")" in
    /root/* | /home/*) return 0 ;;
    esac
    return 1
}

find_python() {
    for name in python3.14 python3.13 python3.12 python3.11 python3; do
        for candidate in "$(command -v "$name" || true)" "/usr/local/bin/$name" "/usr/bin/$name"; do
            if [ -x "$candidate" ] && is_new_enough "$candidate" && ! is_private "$candidate"; then
                echo "$candidate"
                return 0
            fi
        done
    done
    return 1
}

python=
previous=
for word in "$@"; do
    [ "$previous" != --python ] || python=$word
    previous=$word
done
if [ -n "$python" ] && ! is_new_enough "$python"; then
    echo '{"check": "python", "state": "error", "text": "the Python of --python does not work, or is older than 3.11"}'
    exit 1
fi
if [ -z "$python" ] && ! python=$(find_python); then
    echo '{"check": "python", "state": "error", "text": "no Python 3.11 or newer was found; install one, for example with `uv python install 3.12` or your distribution, and name it with --python"}'
    exit 1
fi

program=$(cat <<'END_OF_PROGRAM'
# SERVER_ACCESS


def parse_options():
    import argparse

    parser = argparse.ArgumentParser(prog="install.sh", allow_abbrev=False)
    parser.add_argument("--url", default="", help="the cluster")
    parser.add_argument("--token", default="", help="a join token")
    parser.add_argument("--pin", default="", help="the pin of the server's certificate")
    parser.add_argument("--pool", default="", help="the resource pool to join")
    parser.add_argument("--name", default="", help="the agent's name (default: the host name)")
    parser.add_argument("--label", default="", help="the agent's label")
    parser.add_argument("--python", default="", help="the Python that trials use")
    parser.add_argument("--work-dir", default="", help="the agent's work directory")
    parser.add_argument("--user-install", action="store_true", help="install without root")
    parser.add_argument("--no-updates", action="store_true", help="update on request only")
    parser.add_argument("--archive", default="", help="a file with the agent's code")
    parser.add_argument("--stdin", action="store_true", help="read all options as JSON from stdin")
    parser.add_argument("options", nargs="*", help="further options of the agent, after --")
    return vars(parser.parse_args())


def fetch_package(options):
    if options.get("archive"):
        return options["version"], options["sha256"], Path(options["archive"]).read_bytes()
    url, pin, token = options["url"], options["pin"], options["token"]
    code = json.loads(get(url, "/api/v1/agent-code", pin=pin, token=token).content)
    path = "/api/v1/agent-code/" + code["sha256"]
    return code["version"], code["sha256"], get(url, path, pin=pin, token=token).content


def install(options, show):
    import os
    import subprocess
    import sys
    import tempfile

    version, sha256, content = fetch_package(options)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ServerUnreachable("the archive of the agent's code is damaged; try again")
    with tempfile.TemporaryDirectory() as folder:
        unpack(content, folder)
        path = Path(folder, "code.tar.gz")
        path.write_bytes(content)
        wanted = {**options, "version": version, "sha256": sha256, "archive": str(path)}
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "detcloud.agent.machine", "install"],
            env={**os.environ, "PYTHONPATH": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        child.stdin.write(json.dumps(wanted))
        child.stdin.close()
        for line in child.stdout:
            show(line)
        return child.wait()


def main():
    import sys

    options = parse_options()
    is_json = options.pop("stdin")
    if options.pop("no_updates"):
        options["updates"] = False
    if is_json:
        options.update(json.load(sys.stdin))

    def show(line):
        if is_json:
            print(line, end="", flush=True)
            return
        finding = json.loads(line)
        print("{state:8}{check:9}{text}".format(**finding), flush=True)

    try:
        code = install(options, show)
    except (OSError, ValueError, KeyError, ServerUnreachable) as error:
        show(json.dumps({"check": "download", "state": "error", "text": str(error)}) + "\n")
        code = 1
    sys.exit(code)


main()
END_OF_PROGRAM
)
exec "$python" -c "$program" "$@"
