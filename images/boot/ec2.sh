#!/bin/bash
# Boots an instance as an agent of its cluster. The script contains no secret: the instance proves
# its identity by its role. Names between two @ are replaced before the launch.
set -Eeuo pipefail

root="${DETCLOUD_ROOT:-}"
cloud=aws
url='@URL@'
cluster='@CLUSTER@'
pool='@POOL@'
code_place='@CODE_PLACE@'
code_sha256='@CODE_SHA256@'
mounts='@ALLOWED_MOUNTS@'
mount_points='@FILE_SYSTEM_FOLDERS@'
cpu_slots='@CPU_SLOTS@'
gpus='@GPU_COUNT@'
session_manager='@SESSION_MANAGER@'
log_group='@LOG_GROUP@'
log_stream='@LOG_STREAM@'
metadata="${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}/latest"
work="$root/var/lib/detcloud"
code="$root/opt/detcloud"
units="$root/etc/systemd/system"
alive="$root/run/detcloud/alive"
boot_log="$root/var/log/detcloud-boot.log"

@FAILURES@

@WATCHDOG@

@NETWORK@

# User code may run as any user except the agent's, even as root. Forwarded packets are dropped in
# the table `mangle`, since Docker puts its own rules first in the table `filter`.
cat > "$units/detcloud-firewall.service" <<'UNIT'
[Unit]
Description=Keeps everybody but the agent from the machine's credentials
Before=docker.service detcloud-agent.service
After=network-pre.target

[Service]
Type=oneshot
RemainAfterExit=true
ExecStart=/bin/sh -c 'iptables -I OUTPUT -d 169.254.169.254 -m owner ! --uid-owner detcloud -j REJECT'
ExecStart=/bin/sh -c 'iptables -t mangle -I FORWARD -d 169.254.169.254 -j DROP'
ExecStart=-/bin/sh -c 'ip6tables -I OUTPUT -d fd00:ec2::254 -m owner ! --uid-owner detcloud -j REJECT'
ExecStart=-/bin/sh -c 'ip6tables -t mangle -I FORWARD -d fd00:ec2::254 -j DROP'

[Install]
WantedBy=multi-user.target
UNIT

@USER@

token="$(curl -fsS --noproxy '*' --retry 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$metadata/api/token")"
read_metadata() {
  curl -fsS --noproxy '*' --retry 5 -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/$1"
}
name="$(read_metadata instance-id)"
region="$(read_metadata placement/region)"

@REACH@

# The agent's code comes first, because it reports later failures.
mkdir -p "$code" "$work"
# Only the instances' role can read the code in the cluster's bucket.
cat > "$code/role_signature.py" <<'SIGNATURE'
@ROLE_SIGNATURE@
SIGNATURE
cat > "$code/fetch_code.py" <<'FETCH'
@FETCH_CODE@
FETCH
python3 "$code/fetch_code.py" @FETCH_FROM@ "$region" "$code/agent.tar.gz" \
  || fail_boot "the agent's code could not be fetched: the machine's identity is not allowed to read it, or the way to the bucket is closed. The attempts are above"
echo "$code_sha256  $code/agent.tar.gz" | sha256sum --check --quiet \
  || fail_boot "the agent's code has another digest than the cluster expects: the object in the bucket was changed"
tar -xzf "$code/agent.tar.gz" -C "$code"

@UPDATES@
@INSTALL@
@FILE_SYSTEMS@
@GPUS@
@DOCKER@
cloud_options="--region $region --identity aws --notices ec2"
cloud_environment=
@AGENT@

if [ -n "$log_group" ]; then
  cat > "$units/detcloud-journal.service" <<UNIT
[Unit]
Description=Sends the journal of the agent of detcloud to CloudWatch
Requires=detcloud-firewall.service
After=network-online.target detcloud-firewall.service

[Service]
User=detcloud
SupplementaryGroups=systemd-journal
Environment=PYTHONPATH=$code
EnvironmentFile=-$root/etc/detcloud/machine.env
ExecStart=$(command -v "$python") -P -m detcloud.agent.aws.journal --group $log_group --stream=$log_stream --cursor $work/journal-cursor
Restart=always
RestartSec=15

[Install]
WantedBy=multi-user.target
UNIT
fi

# Systems Manager's agent runs as root and reads the role's keys from the metadata.
if [ -n "$session_manager" ]; then
  sed -i '/^ExecStart=.*-I OUTPUT -d 169/a ExecStart=/bin/sh -c "iptables -I OUTPUT -d 169.254.169.254 -m owner --uid-owner root -j ACCEPT"' \
    "$units/detcloud-firewall.service"
  if [ -n "${https_proxy:-}" ] && ! snap list amazon-ssm-agent > /dev/null 2>&1; then
    snap set system proxy.http="${http_proxy:-}" proxy.https="$https_proxy" || true
  fi
  snap list amazon-ssm-agent > /dev/null 2>&1 || snap install amazon-ssm-agent --classic \
    || echo "Systems Manager's agent was not installed: no session can be opened"
fi

@STARTUP_SCRIPT@
systemctl daemon-reload
systemctl enable --now detcloud-firewall.service
[ -z "$log_group" ] || systemctl enable --now detcloud-journal.service
if [ -n "$session_manager" ]; then
  systemctl restart snap.amazon-ssm-agent.amazon-ssm-agent.service || true
fi
@AWAIT_AGENT@
