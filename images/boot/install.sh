#!/bin/bash
# What an instance needs beside the agent's code, as far as its machine image lacks it: the boot
# script holds these lines, and the build of a machine image runs them before.
set -Eeuo pipefail

lacking=()
command -v docker > /dev/null || lacking+=(docker.io)
command -v iptables > /dev/null || lacking+=(iptables)
python=python3
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  python=python3.11
  command -v "$python" > /dev/null || lacking+=("$python")
fi
if [ "${#lacking[@]}" -gt 0 ]; then
  # Updates that a machine installs by itself hold the lock for a while.
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=300 -q update
  apt-get -o DPkg::Lock::Timeout=300 -qy install --no-install-recommends "${lacking[@]}"
fi
