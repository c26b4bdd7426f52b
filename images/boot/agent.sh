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
# It gives a trial's files to the trial's user, who is another one than its own: to that one the
# metadata is open. The port at which trials ask for their keys is one that no trial may take. Who
# may use Docker is as good as root anyway.
AmbientCapabilities=CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER CAP_NET_BIND_SERVICE
Environment=PYTHONPATH=$code${cloud_environment:+ $cloud_environment}
ExecStart=$(command -v "$python") -P -m detcloud.agent --url ${url//\$/\$\$} --cluster $cluster --pool $pool --name $name $cloud_options --container-runtime docker --container-user 1000:1000 --cpu-slots $cpu_slots --allow-mount $mounts --work-dir $work --alive-file $alive
Restart=always
RestartSec=5
# Trials outlive their agent: the next one goes on with them.
KillMode=process
UMask=0077

[Install]
WantedBy=multi-user.target
UNIT
