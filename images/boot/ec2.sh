#!/bin/bash
# The first boot of an instance: what makes it an agent of its cluster. Nothing in here is secret: the
# instance proves who it is by its role. A name between two @ is replaced before it is launched.
set -Eeuo pipefail

root="${DETCLOUD_ROOT:-}"
url='@URL@'
cluster='@CLUSTER@'
pool='@POOL@'
code_place='@CODE_PLACE@'
code_sha256='@CODE_SHA256@'
mounts='@ALLOWED_MOUNTS@'
cpu_slots='@CPU_SLOTS@'
session_manager='@SESSION_MANAGER@'
log_group='@LOG_GROUP@'
log_stream='@LOG_STREAM@'
metadata=http://169.254.169.254/latest
work="$root/var/lib/detcloud"
code="$root/opt/detcloud"
units="$root/etc/systemd/system"
alive="$root/run/detcloud/alive"
boot_log="$root/var/log/detcloud-boot.log"

# What is written goes to the console, too, whose output EC2 keeps. A boot that fails says why and
# ends the machine at once: nobody pays for one that waits to be noticed.
failed='its end'
trap 'failed="line $LINENO: $BASH_COMMAND"' ERR
trap 'status=$?; [ "$status" = 0 ] || end_failed_boot "$status"' EXIT
end_failed_boot() {
  trap - ERR EXIT
  set +e
  echo "detcloud: the boot failed with $1 at $failed"
  sleep 1
  if [ -d "$code/detcloud" ]; then
    as=()
    id detcloud > /dev/null 2>&1 && as=(runuser -u detcloud --)
    tail -c 3000 "$boot_log" | "${as[@]}" env PYTHONSAFEPATH=1 PYTHONPATH="$code" timeout 60 \
      python3 -m detcloud.agent.aws.boot_report --url "$url" --cluster "$cluster" --pool "$pool"
  fi
  systemctl poweroff
}
mkdir -p "${boot_log%/*}"
exec > >(tee "$boot_log") 2>&1

# The machine ends itself once its agent has not reached the cluster for a while, and ends means
# terminates. This comes before all that may fail: whatever goes wrong, it cannot stay for ever.
mkdir -p "$units"
cat > "$units/detcloud-watchdog.service" <<UNIT
[Unit]
Description=Ends this machine when its agent does not reach the cluster

[Service]
ExecStart=/bin/sh -c 'mkdir -p ${alive%/*}; [ -e $alive ] || touch $alive; chown -R detcloud ${alive%/*}; while sleep 30; do [ "\$(find $alive -mmin -@SILENT_MINUTES@)" ] || systemctl poweroff; done'
Restart=always

[Install]
WantedBy=multi-user.target
UNIT

systemctl daemon-reload
systemctl enable --now detcloud-watchdog.service

# User code may be anybody but the agent's user, root among them. What is forwarded is dropped where
# Docker has no rules: in the table `filter` it puts its own before all that are there.
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

id detcloud > /dev/null 2>&1 || useradd --system --home-dir "$work" --shell /usr/sbin/nologin detcloud
# The watchdog was there before the user.
mkdir -p "${alive%/*}"
touch "$alive"
chown -R detcloud "${alive%/*}"

token="$(curl -fsS --retry 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$metadata/api/token")"
read_metadata() {
  curl -fsS --retry 5 -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/$1"
}
name="$(read_metadata instance-id)"
region="$(read_metadata placement/region)"

# First what reports failures of the rest.
mkdir -p "$code" "$work"
# The cluster's bucket has it, for the instances' role alone: nobody else can have it sent.
cat > "$code/fetch_code.py" <<'FETCH'
@FETCH_CODE@
FETCH
python3 "$code/fetch_code.py" "$code_place/$code_sha256" "$region" "$code/agent.tar.gz"
echo "$code_sha256  $code/agent.tar.gz" | sha256sum --check --quiet
tar -xzf "$code/agent.tar.gz" -C "$code"

@INSTALL@
@FILE_SYSTEMS@
@DOCKER@
usermod -aG docker detcloud
chown detcloud "$work"
chmod 700 "$work"

cat > "$units/detcloud-agent.service" <<UNIT
[Unit]
Description=The agent of detcloud
Wants=network-online.target
Requires=detcloud-firewall.service
RequiresMountsFor=@FILE_SYSTEM_FOLDERS@
After=network-online.target docker.service detcloud-firewall.service

[Service]
User=detcloud
# It gives a trial's files to the trial's user, who is another one than its own: to that one the
# metadata is open. The port at which trials ask for their keys is one that no trial may take. Who
# may use Docker is as good as root anyway.
AmbientCapabilities=CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_NET_BIND_SERVICE
Environment=PYTHONPATH=$code
ExecStart=$(command -v "$python") -P -m detcloud.agent --url ${url//\$/\$\$} --cluster $cluster --pool $pool --name $name --region $region --identity aws --notices ec2 --container-runtime docker --container-user 1000:1000 --cpu-slots $cpu_slots --allow-mount $mounts --work-dir $work --alive-file $alive
Restart=always
RestartSec=5
# Trials outlive their agent: the next one goes on with them.
KillMode=process
UMask=0077

[Install]
WantedBy=multi-user.target
UNIT

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
ExecStart=$(command -v "$python") -P -m detcloud.agent.aws.journal --group $log_group --stream=$log_stream --cursor $work/journal-cursor
Restart=always
RestartSec=15

[Install]
WantedBy=multi-user.target
UNIT
fi

# Systems Manager's agent is root, and fetches the role's keys like everybody else.
if [ -n "$session_manager" ]; then
  sed -i '/^ExecStart=.*-I OUTPUT -d 169/a ExecStart=/bin/sh -c "iptables -I OUTPUT -d 169.254.169.254 -m owner --uid-owner root -j ACCEPT"' \
    "$units/detcloud-firewall.service"
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
began="$root/run/detcloud/began"
touch "$began"
systemctl enable --now detcloud-agent.service
# The agent touches the file with each answer of the cluster.
for ((waited = 0; waited < @BOOT_SECONDS@; waited += 5)); do
  [ "$alive" -nt "$began" ] && exit 0
  sleep 5
done
journalctl --unit detcloud-agent --lines 30 --no-pager --output cat || true
failed='the agent, which did not reach the cluster'
exit 1
