#!/bin/bash
# Gives the machine the proxy and the authorities of its pool, before the first download. This file
# is a part of the boot script of a pool that has them. The script sets `root` and `units`.

settings="$root/etc/detcloud"
# Only root can read the file, which may contain the proxy's password.
machine_env="$settings/machine.env"
mkdir -p "$settings"
(umask 077 && : > "$machine_env")

# Adds the certificates of the standard input to the authorities that the machine trusts.
trust_authorities() {
  local folder="$root/usr/local/share/ca-certificates" all="$root/etc/ssl/certs/ca-certificates.crt" file number
  mkdir -p "$folder"
  cat > "$settings/authorities.pem"
  # Each file may contain only one certificate.
  awk -v place="$folder/detcloud-" '/-BEGIN/ { number += 1 } { print > (place number ".crt") }' "$settings/authorities.pem"
  for file in "$folder"/detcloud-*.crt; do
    number="${file##*-}"
    openssl x509 -in "$file" -noout -checkend 0 > /dev/null 2>&1 \
      || fail_boot "certificate ${number%.crt} of provider.ca_certificates has expired or is damaged: replace it"
  done
  update-ca-certificates \
    || fail_boot "the certificates of provider.ca_certificates could not be installed: choose a machine image with the package ca-certificates"
  # Programs with authorities of their own, such as Conda's Python, read these variables.
  printf "%s='%s'\n" DETCLOUD_CA_FILE "$settings/authorities.pem" SSL_CERT_FILE "$all" CURL_CA_BUNDLE "$all" >> "$machine_env"
}

# Sets the variables of the standard input for this script, Docker and Systems Manager's agent. No
# program gets the password as an argument, because all users can list the arguments.
use_proxy() {
  cat >> "$machine_env"
}

give_environment() {
  local unit
  set -a
  # shellcheck source=/dev/null
  . "$machine_env"
  set +a
  for unit in docker snap.amazon-ssm-agent.amazon-ssm-agent; do
    mkdir -p "$units/$unit.service.d"
    printf '[Service]\nEnvironmentFile=%s\n' "$machine_env" > "$units/$unit.service.d/detcloud.conf"
  done
  systemctl daemon-reload
}
