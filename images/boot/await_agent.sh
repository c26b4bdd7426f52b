# The agent touches $alive after each answer of the cluster.
began="$root/run/detcloud/began"
touch "$began"
systemctl enable --now detcloud-agent.service
for ((waited = 0; waited < @BOOT_SECONDS@; waited += 5)); do
  [ "$alive" -nt "$began" ] && exit 0
  sleep 5
done
journalctl --unit detcloud-agent --lines 30 --no-pager --output cat || true
fail_boot 'the agent started and did not reach the cluster within @BOOT_SECONDS@ s; its last lines are above'
