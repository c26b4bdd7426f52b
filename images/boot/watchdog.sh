# Ends the machine when its agent has not reached the cluster for a while. The watchdog starts
# before all steps that may fail, so that no failure keeps the machine for ever.
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
