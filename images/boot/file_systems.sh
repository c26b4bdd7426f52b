#!/bin/bash
# How an instance mounts file systems of EFS and FSx, or of a server of NFS; the boot script of a pool
# that has some holds these lines, and calls for each. `region` and `root` are the boot script's.

install_nfs_client() {
  command -v mount.nfs4 > /dev/null && return
  # A machine image's own list of packages is old, and names some that are gone.
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=300 -q update
  apt-get -o DPkg::Lock::Timeout=300 -qy install --no-install-recommends nfs-common
}

# Mounts one by its kind, id, folder and mount name, now and whenever the machine starts again. A
# server of NFS has its share for an id, and the version of its protocol for a mount name.
mount_file_system() {
  local source type options
  case "$1" in
    nfs)
      install_nfs_client
      source="$2"
      type=nfs options=vers=$4,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=3,_netdev
      ;;
    efs)
      install_nfs_client
      source="$2.efs.$region.amazonaws.com:/"
      type=nfs4 options=nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev
      ;;
    fsx_lustre)
      modprobe lustre || { echo "this machine image has no Lustre client for $2"; return 1; }
      source="$2.fsx.$region.amazonaws.com@tcp:/$4"
      type=lustre options=relatime,flock,_netdev
      ;;
  esac
  mkdir -p "$root$3"
  echo "$source $3 $type $options 0 0" >> "$root/etc/fstab"
  timeout 180 mount "$3" || { echo "$source cannot be mounted: it, or a way to it, is missing"; return 1; }
}
