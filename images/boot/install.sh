#!/bin/bash
# Installs the packages that an instance needs and its machine image lacks. This file is a part of
# the boot script, and the build of a machine image runs it too.
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
  # The automatic updates of a new machine hold the lock for a while.
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=300 -q update
  apt-get -o DPkg::Lock::Timeout=300 -qy install --no-install-recommends "${lacking[@]}"
fi
