usermod -aG docker detcloud
chown detcloud "$work"
chmod 700 "$work"

cat > "$units/detcloud-agent.service" <<UNIT
[Unit]
Description=The agent of detcloud
Wants=network-online.target
Requires=detcloud-firewall.service
RequiresMountsFor=$mount_points
After=network-online.target docker.service detcloud-firewall.service

[Service]
User=detcloud
# The agent gives a trial's files to the trial's user. Trials run as another user than the agent,
# since the agent's user can read the metadata. Trials get their keys at a privileged port, which no
# trial can occupy. The agent may use Docker, so it could act as root anyway.
AmbientCapabilities=CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_NET_BIND_SERVICE
EnvironmentFile=-$root/etc/detcloud/machine.env
Environment=PYTHONPATH=$code${cloud_environment:+ $cloud_environment}
ExecStart=$(command -v "$python") -P -m detcloud.agent --url ${url//\$/\$\$} --cluster $cluster --pool $pool --name $name $cloud_options --container-runtime docker --container-user 1000:1000 --cpu-slots $cpu_slots --allow-mount $mounts --work-dir $work --alive-file $alive
Restart=always
RestartSec=5
# Trials continue after the end of their agent, and the next agent takes them over.
KillMode=process
UMask=0077

[Install]
WantedBy=multi-user.target
UNIT
