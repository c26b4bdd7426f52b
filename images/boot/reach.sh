# Checks the way to the cluster's API, and the clock. Each fault ends the boot with its reason. This
# file is a part of the boot script, which sets `url`.

# AWS refuses signatures, and Google refuses tokens, of clocks that are further off.
clock_seconds_max=240

# Prints the headers of the API's answer, whatever its status. $@ are more options of curl.
ask_cluster() {
  curl -sS --max-time 20 --output /dev/null --dump-header - "$@" "$url/" 2>&1
}

# Ends the boot if the clock differs from the time in the headers $1. Headers without a time pass.
check_clock() {
  local date offset
  date="$(sed -n 's/^[Dd]ate: *//p' <<< "$1" | tail -n 1 | tr -d '\r')"
  [ -n "$date" ] || return 0
  offset=$(($(date +%s) - $(date -d "$date" +%s)))
  [ "${offset#-}" -le "$clock_seconds_max" ] \
    || fail_boot "the clock of the machine is ${offset#-} s off the cluster's clock: its time service (chrony) does not work"
}

# Prints the proxy for the cluster's address without its login, or nothing.
proxy_shown() {
  local proxy="${https_proxy:-}"
  [ "${url%%:*}" = https ] || proxy="${http_proxy:-}"
  proxy="${proxy#*://}" && proxy="${proxy##*@}"
  [ -z "$proxy" ] || echo "http://${proxy%/}"
}

check_way() {
  local host="${url#*://}" began=$SECONDS status answer proxy way
  host="${host%%[/:]*}" proxy="$(proxy_shown)"
  way="the subnet needs a way to the internet (a public address, NAT or a proxy), and its firewall must allow port 443"
  [ -z "$proxy" ] || way="check the pool's proxy $proxy, and the way to it"
  while true; do
    status=0
    answer="$(ask_cluster)" || status=$?
    [ "$status" != 0 ] && [ $((SECONDS - began)) -lt @REACH_SECONDS@ ] || break
    sleep 5
  done
  if [ -n "$proxy" ] && grep -qE '^HTTP/[0-9.]+ 407|(code|response) 407' <<< "$answer"; then
    fail_boot "the proxy $proxy does not accept its user and password for $host (407): correct provider.proxy of the pool"
  fi
  case "$status" in
    0) check_clock "$answer" ;;
    5) fail_boot "the name of the proxy cannot be resolved: correct $proxy in provider.proxy of the pool. $answer" ;;
    6) fail_boot "the name $host cannot be resolved: the network of the machine has no DNS" ;;
    7 | 28) fail_boot "$host cannot be reached: $way. $answer" ;;
    35 | 60)
      check_clock "$(ask_cluster --insecure || true)"
      fail_boot "the certificate of $host is not accepted: if a proxy replaces certificates, add the certificate of its authority to provider.ca_certificates of the pool. $answer"
      ;;
    *) fail_boot "the cluster at $host does not answer${proxy:+ through the proxy $proxy, which must allow this host}: $answer" ;;
  esac
}

check_way
