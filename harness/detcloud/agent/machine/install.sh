#!/bin/sh
# Installs the agent of a detcloud cluster on this machine. The cluster serves this script.
# `detcloud agent join-line` prints the command that downloads and starts the script.
set -eu

find_python() {
    for candidate in "$@" python3.14 python3.13 python3.12 python3.11 python3; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -I -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' \
                >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

wanted=
previous=
for word in "$@"; do
    [ "$previous" != --python ] || wanted=$word
    previous=$word
done
if ! python=$(find_python "$wanted"); then
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
    parser.add_argument("--pool", default="default", help="the resource pool to join")
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
        with open(options["archive"], "rb") as file:
            return options["version"], options["sha256"], file.read()
    url, pin, token = options["url"], options["pin"], options["token"]
    code = json.loads(get(url, "/api/v1/agent-code", pin=pin, token=token).content)
    path = "/api/v1/agent-code/" + code["sha256"]
    return code["version"], code["sha256"], get(url, path, pin=pin, token=token).content


def install(options, show):
    import io
    import os
    import subprocess
    import sys
    import tarfile
    import tempfile

    version, sha256, content = fetch_package(options)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ServerUnreachable("the archive of the agent's code is damaged; try again")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
            archive.extractall(folder, filter="data")
        path = os.path.join(folder, "code.tar.gz")
        with open(path, "wb") as file:
            file.write(content)
        for place, folders, files in os.walk(folder):
            os.chmod(place, 0o755)
        wanted = {**options, "version": version, "sha256": sha256, "archive": path}
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
    options["updates"] = not options.pop("no_updates")
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
