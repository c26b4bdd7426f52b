# The machine ends itself once its agent has not reached the cluster for a while. This comes before
# all that may fail: whatever goes wrong, it cannot stay for ever.
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
