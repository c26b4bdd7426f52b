#!/bin/bash
# Mounts file systems of EFS, FSx for Lustre and NFS servers. The boot script of a pool with file
# systems contains this file and a call for each file system. It sets `region` and `root`.

install_nfs_client() {
  command -v mount.nfs4 > /dev/null && return
  # The package list of a machine image is old and names versions that no longer exist.
  export DEBIAN_FRONTEND=noninteractive
  apt-get -o DPkg::Lock::Timeout=300 -q update
  apt-get -o DPkg::Lock::Timeout=300 -qy install --no-install-recommends nfs-common
}

# Mounts a file system now and at each start. Arguments: type, id, folder, mount name. For NFS, the
# id is SERVER:SHARE, and the mount name is the version of the protocol. Fails if it cannot mount.
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
      modprobe lustre || fail_boot "the machine image has no Lustre client, which the file system $2 needs"
      source="$2.fsx.$region.amazonaws.com@tcp:/$4"
      type=lustre options=relatime,flock,_netdev
      ;;
  esac
  mkdir -p "$root$3"
  echo "$source $3 $type $options 0 0" >> "$root/etc/fstab"
  timeout 180 mount "$3" || fail_boot "$source cannot be mounted at $3: the file system or the way to it is missing"
}
