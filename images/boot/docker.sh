#!/bin/bash
# Configures the folders of Docker, and restarts Docker. This file is a part of the boot script, which sets
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

# Ends the boot if the disk of Docker's images is nearly full. An image of trials with torch and CUDA
# needs about 10 GiB.
check_disk() {
  local free least="${DETCLOUD_DISK_GIB_MIN:-15}"
  free="$(df --output=avail --block-size=1G "$root/var/lib/docker" | tail -n 1 | tr -d ' ')"
  [ "$free" -ge "$least" ] \
    || fail_boot "the disk of Docker's images has $free GiB free, and trials need at least $least: give the pool larger boot disks"
}

use_instance_store
mkdir -p "$root/var/lib/docker"
check_disk
systemctl restart docker || fail_boot "Docker does not start: $(systemctl status docker 2>&1 | tail -n 3 | tr '\n' ' ')"
