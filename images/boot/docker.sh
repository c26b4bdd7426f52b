#!/bin/bash
# Configures the folders and the GPUs of Docker. This file is a part of the boot script, which sets
# `root`.

# Moves Docker's folders to the instance's local disks, if it has any: local disks are faster and
# included in the price. If Docker already has images, the folders stay.
use_instance_store() {
  local store="$root/opt/dlami/nvme" disks=() disk device folder mount_again=false
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
    mount_again="mount -o noatime UUID=$(blkid -s UUID -o value "$device") $store"
  fi
  [ -z "$(docker images --quiet 2> /dev/null)" ] || return 0
  systemctl stop docker.socket docker containerd || true
  for folder in docker containerd; do
    mkdir -p "$store/$folder" "$root/var/lib/$folder"
    mount --bind "$store/$folder" "$root/var/lib/$folder"
  done
  mount_on_start "$store" "$mount_again"
  echo "Docker's folders are on the instance's own disks: $store"
}

# Installs a unit that mounts folder $1 by command $2 at each start, before Docker starts. If the
# machine image itself mounts $1, $2 is `false`, and the unit waits up to a minute.
mount_on_start() {
  local units="$root/etc/systemd/system"
  mkdir -p "$units"
  cat > "$units/detcloud-disks.service" <<UNIT
[Unit]
Description=Mounts the instance's own disks for Docker
Before=docker.service containerd.service

[Service]
Type=oneshot
RemainAfterExit=true
ExecStart=-/bin/sh -c 'mdadm --assemble --scan'
ExecStart=/bin/sh -c 'for second in \$\$(seq 60); do mountpoint -q $1 || $2 && exit 0; sleep 1; done; exit 1'
ExecStart=/bin/sh -c 'for it in docker containerd; do mkdir -p $1/\$\$it; mountpoint -q $root/var/lib/\$\$it || mount --bind $1/\$\$it $root/var/lib/\$\$it; done'

[Install]
WantedBy=multi-user.target
UNIT
  systemctl enable detcloud-disks.service
}

# Keeps the GPUs of containers across a reload of systemd, which resets the devices of a container
# and so removes GPUs that NVIDIA's hook added. GPUs from CDI stay. With the driver cgroupfs, Docker
# manages the cgroups itself, so that no GPUs are removed.
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
