#!/bin/bash
# Where Docker keeps images and containers, and how it gives GPUs; the boot script holds these lines.
# `root` is the boot script's.

# Docker's folders are on the instance's own disks where its type has such, which are faster and paid
# for anyway. Images that are on the machine already stay where they are.
use_instance_store() {
  local store="$root/opt/dlami/nvme" disks=() disk device folder
  if ! mountpoint -q "$store"; then
    for disk in $(readlink -f "$root"/dev/disk/by-id/{nvme-Amazon_EC2_NVMe_Instance_Storage_,google-local-nvme-ssd-,google-local-ssd-}* | sort -u); do
      if [ -b "$disk" ] && [ "$(lsblk -nro NAME "$disk" | wc -l)" = 1 ] && [ -z "$(lsblk -dnro MOUNTPOINT,FSTYPE "$disk" | tr -d ' ')" ]; then
        disks+=("$disk")
      fi
    done
    [ "${#disks[@]}" -gt 0 ] || return 0
    device="${disks[0]}" store="$root/mnt/detcloud"
    if [ "${#disks[@]}" -gt 1 ] && command -v mdadm > /dev/null; then
      device=/dev/md/detcloud
      mdadm --create "$device" --run --level=0 --raid-devices="${#disks[@]}" "${disks[@]}"
    fi
    mkdir -p "$store"
    mkfs.ext4 -q -m 0 -E nodiscard "$device" && mount -o noatime "$device" "$store" || return 0
  fi
  [ -z "$(docker images --quiet 2> /dev/null)" ] || return 0
  systemctl stop docker.socket docker containerd || true
  for folder in docker containerd; do
    mkdir -p "$store/$folder" "$root/var/lib/$folder"
    mount --bind "$store/$folder" "$root/var/lib/$folder"
  done
  echo "Docker's folders are on the instance's own disks: $store"
}

# GPUs that NVIDIA's hook gives a container are lost when systemd reads its units anew, since it sets
# the container's devices again. Those of CDI are not, and none are where Docker manages cgroups.
keep_gpus() {
  command -v nvidia-smi > /dev/null && nvidia-smi > /dev/null || return 0
  if command -v nvidia-ctk > /dev/null; then
    mkdir -p "$root/etc/cdi"
    nvidia-ctk cdi generate --device-name-strategy=uuid --output="$root/etc/cdi/nvidia.yaml" || true
  fi
  mkdir -p "$root/etc/docker"
  python3 - "$root/etc/docker/daemon.json" <<'SETTINGS'
import json, os, sys
path = sys.argv[1]
settings = json.load(open(path)) if os.path.exists(path) else {}
options = [it for it in settings.get("exec-opts", []) if not it.startswith("native.cgroupdriver")]
settings["exec-opts"] = [*options, "native.cgroupdriver=cgroupfs"]
settings.setdefault("features", {})["cdi"] = True
json.dump(settings, open(path, "w"), indent=1)
SETTINGS
}

use_instance_store
keep_gpus
systemctl restart docker
