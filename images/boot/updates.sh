# Stops automatic updates: an update would replace the GPUs' driver below running trials, and restart
# Docker. A running update ends after its current package. This file is a part of the boot script,
# which sets `root`.
apt_settings="$root/etc/apt/apt.conf.d"
mkdir -p "$apt_settings"
printf '%s\n' 'APT::Periodic::Enable "0";' 'APT::Periodic::Unattended-Upgrade "0";' > "$apt_settings/99detcloud"
systemctl mask --now apt-daily.timer apt-daily-upgrade.timer || true
timeout 300 systemctl stop apt-daily.service apt-daily-upgrade.service unattended-upgrades.service || true
