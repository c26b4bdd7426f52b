#!/bin/bash
# Prepares a machine that Packer started, before Packer makes the image. Runs as root, with
# install.sh and the Dockerfile of trials in /tmp. KIND is gpu or cpu. PULL names more images of
# trials.
set -euo pipefail
cd /tmp

# A new machine may still be installing updates.
cloud-init status --wait > /dev/null || true
bash install.sh
systemctl enable --now docker

if [ "$KIND" = gpu ] && ! { modinfo nvidia && nvidia-ctk --version; } > /dev/null; then
  echo "the base image has no NVIDIA driver or no container toolkit: take one that has both" >&2
  exit 1
fi

# The tags are the default images of trials, so that no instance pulls these images.
docker build --tag detcloud/trial:0.1.0-cpu - < Dockerfile
if [ "$KIND" = gpu ]; then
  docker build --tag detcloud/trial:0.1.0-cuda --build-arg TORCH_INDEX=https://pypi.org/simple - < Dockerfile
fi
for image in $PULL; do
  docker pull --quiet "$image"
done
docker builder prune --all --force > /dev/null

# The image must contain no keys, identity or logs of this machine.
apt-get clean
rm -rf /tmp/install.sh /tmp/Dockerfile /var/lib/apt/lists/* /root/.docker /home/*/.docker
rm -f /etc/ssh/ssh_host_* /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys
rm -f /root/.bash_history /home/*/.bash_history
cloud-init clean --logs --machine-id
sync
