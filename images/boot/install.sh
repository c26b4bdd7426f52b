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
  export DEBIAN_FRONTEND=noninteractive
  { apt-get -o DPkg::Lock::Timeout=300 -q update \
    && apt-get -o DPkg::Lock::Timeout=300 -qy install --no-install-recommends "${lacking[@]}"; } || {
    reason="the packages ${lacking[*]} could not be installed: choose a machine image that has them, or give the machine a way to its package servers"
    exit 1
  }
fi
