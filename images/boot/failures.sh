# The output also goes to the console, which the cloud stores. A failed boot reports the cause and
# ends the machine at once, so that a useless machine costs no more.
reason=''
trap 'status=$?; [ -n "$reason" ] || reason="status $status in line $LINENO: $BASH_COMMAND"' ERR
trap 'status=$?; [ "$status" = 0 ] || end_failed_boot "$status"' EXIT

# Ends the boot with a text for users: the fault, and what to do.
fail_boot() {
  reason="$1"
  exit 1
}

end_failed_boot() {
  trap - ERR EXIT
  set +e
  echo "detcloud: the boot failed: ${reason:-status $1}"
  sleep 1
  if [ -d "$code/detcloud" ]; then
    as=()
    id detcloud > /dev/null 2>&1 && as=(runuser -u detcloud --)
    tail -c 3000 "$boot_log" | "${as[@]}" env PYTHONSAFEPATH=1 PYTHONPATH="$code" timeout 120 \
      python3 -m detcloud.agent.boot_report --cloud "$cloud" --url "$url" --cluster "$cluster" --pool "$pool"
  fi
  systemctl poweroff
}
mkdir -p "${boot_log%/*}"
exec > >(tee "$boot_log") 2>&1
