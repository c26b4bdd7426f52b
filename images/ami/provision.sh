#!/bin/bash
# Prepares a machine that Packer started, before Packer makes the image. Runs as root, with
# install.sh in /tmp. KIND is gpu or cpu. PULL names more images of trials.
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

# The default image of trials, so that no instance pulls the image. The digest pins the content.
trial=docker.io/pytorch/pytorch:2.13.0-cuda12.6-cudnn9-runtime@sha256:6acf597eeb8e376a96580dde4952f37cc017fef732bb40bfc73f28f25e3f64b4
for image in "$trial" $PULL; do
  docker pull --quiet "$image"
done

# The image must contain no keys, identity or logs of this machine.
apt-get clean
rm -rf /tmp/install.sh /var/lib/apt/lists/* /root/.docker /home/*/.docker
rm -f /etc/ssh/ssh_host_* /root/.ssh/authorized_keys /home/*/.ssh/authorized_keys
rm -f /root/.bash_history /home/*/.bash_history
cloud-init clean --logs --machine-id
sync
