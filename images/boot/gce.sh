#!/bin/bash
# Boots a Compute Engine instance as an agent of its cluster. The script contains no secret: the
# instance proves its identity by a token that Google signs. Names between two @ are replaced before
# the launch.
set -Eeuo pipefail

root="${DETCLOUD_ROOT:-}"
cloud=gcp
url='@URL@'
cluster='@CLUSTER@'
pool='@POOL@'
code_place='@CODE_PLACE@'
code_sha256='@CODE_SHA256@'
code_audience='@CODE_AUDIENCE@'
mounts='@ALLOWED_MOUNTS@'
mount_points='@FILE_SYSTEM_FOLDERS@'
cpu_slots='@CPU_SLOTS@'
gpus='@GPU_COUNT@'
preemption_seconds='@PREEMPTION_SECONDS@'
cloud_logging='@CLOUD_LOGGING@'
metadata="http://${GCE_METADATA_HOST:-169.254.169.254}/computeMetadata/v1"
work="$root/var/lib/detcloud"
code="$root/opt/detcloud"
units="$root/etc/systemd/system"
alive="$root/run/detcloud/alive"
boot_log="$root/var/log/detcloud-boot.log"
booted="$root/var/lib/detcloud-booted"

# Google runs this script at every start of the machine. After the first boot, the units suffice.
[ ! -e "$booted" ] || exit 0

@FAILURES@

@WATCHDOG@

@NETWORK@

# User code may run as any user except the agent's, even as root. Forwarded packets are dropped in
# the table `mangle`, since Docker puts its own rules first in the table `filter`. Port 53 stays
# open: the machine's name server has the same address. The rules with `cgroup` open the metadata to
# root's system services, which OS Login, the Ops Agent and Google's guest agent need. Containers are
# in another control group (`set_docker_options`). Without version 2 of control groups, containers
# cannot be told apart, and the metadata stay closed to root.
cat > "$units/detcloud-firewall.service" <<'UNIT'
[Unit]
Description=Keeps everybody but the agent from the machine's credentials
Before=docker.service detcloud-agent.service
After=network-pre.target

[Service]
Type=oneshot
RemainAfterExit=true
ExecStart=/bin/sh -c 'iptables -I OUTPUT -d 169.254.169.254 -p tcp ! --dport 53 -m owner ! --uid-owner detcloud -j REJECT'
ExecStart=/bin/sh -c 'iptables -t mangle -I FORWARD -d 169.254.169.254 -p tcp ! --dport 53 -j DROP'
ExecStart=-/bin/sh -c 'ip6tables -I OUTPUT -d fd20:ce::254 -p tcp ! --dport 53 -m owner ! --uid-owner detcloud -j REJECT'
ExecStart=-/bin/sh -c 'ip6tables -t mangle -I FORWARD -d fd20:ce::254 -p tcp ! --dport 53 -j DROP'
ExecStart=-/bin/sh -c 'test -e /sys/fs/cgroup/cgroup.controllers && iptables -I OUTPUT -d 169.254.169.254 -p tcp -m owner --uid-owner root -m cgroup --path system.slice -j ACCEPT'
ExecStart=-/bin/sh -c 'test -e /sys/fs/cgroup/cgroup.controllers && ip6tables -I OUTPUT -d fd20:ce::254 -p tcp -m owner --uid-owner root -m cgroup --path system.slice -j ACCEPT'

[Install]
WantedBy=multi-user.target
UNIT

@USER@

read_metadata() {
  curl -fsS --noproxy '*' --retry 5 --retry-connrefused -H 'Metadata-Flavor: Google' "$metadata/$1"
}
name="$(read_metadata instance/name)"

# Only the instances' account can read the agent's code in the cluster's bucket. The token is passed
# by stdin, because all users of the machine can read the arguments of processes.
fetch_from_bucket() {
  local token
  token="$(read_metadata instance/service-accounts/default/token | sed -E 's/.*"access_token": *"([^"]+)".*/\1/')" || return
  curl -fsS --retry 10 --retry-all-errors -H @- -o "$code/agent.tar.gz" "$code_place/$code_sha256" <<< "Authorization: Bearer $token"
}

# A bucket in another cloud cannot check an account of this cloud. The instance proves its identity
# to the cluster, which redirects to a signed URL. The cluster may know this instance only after the
# next tick, a minute later.
fetch_from_cluster() {
  local proof
  proof="$(read_metadata "instance/service-accounts/default/identity?audience=$code_audience&format=full")" || return
  curl -fsSL --retry 24 --retry-delay 5 --retry-all-errors -H 'Content-Type: application/json' -d @- \
    -o "$code/agent.tar.gz" "$url/api/v1/instances/$name/agent-code" \
    <<< "{\"resource_pool\": \"$pool\", \"sha256\": \"$code_sha256\", \"identity_token\": \"$proof\"}"
}

@REACH@

# The agent's code comes first, because it reports later failures.
mkdir -p "$code" "$work"
fetch=fetch_from_cluster
[ -z "$code_place" ] || fetch=fetch_from_bucket
"$fetch" || fail_boot "the agent's code could not be fetched: the machine's identity is not allowed to read it, or the way to the bucket is closed. The attempts are above"
echo "$code_sha256  $code/agent.tar.gz" | sha256sum --check --quiet \
  || fail_boot "the agent's code has another digest than the cluster expects: the object in the bucket was changed"
tar -xzf "$code/agent.tar.gz" -C "$code"

@UPDATES@
@INSTALL@
@FILE_SYSTEMS@
@GPUS@
@DOCKER@
cloud_options="--identity gcp --notices gce"
cloud_environment="DETCLOUD_PREEMPTION_SECONDS=$preemption_seconds"
@AGENT@

if [ -n "$cloud_logging" ]; then
  cat > "$units/detcloud-journal.service" <<UNIT
[Unit]
Description=Sends the journal of the agent of detcloud to Cloud Logging
Requires=detcloud-firewall.service
After=network-online.target detcloud-firewall.service

[Service]
User=detcloud
SupplementaryGroups=systemd-journal
Environment=PYTHONPATH=$code
EnvironmentFile=-$root/etc/detcloud/machine.env
ExecStart=$(command -v "$python") -P -m detcloud.agent.gcp.journal --cursor $work/journal-cursor
Restart=always
RestartSec=15

[Install]
WantedBy=multi-user.target
UNIT
fi

@STARTUP_SCRIPT@
# Without access to the metadata, this service would retry until power-off and delay the shutdown.
systemctl disable --now google-shutdown-scripts.service || true
systemctl daemon-reload
systemctl enable --now detcloud-firewall.service
[ -z "$cloud_logging" ] || systemctl enable --now detcloud-journal.service
touch "$booted"
@AWAIT_AGENT@
