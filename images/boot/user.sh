id detcloud > /dev/null 2>&1 || useradd --system --home-dir "$work" --shell /usr/sbin/nologin detcloud
# The watchdog was there before the user.
mkdir -p "${alive%/*}"
touch "$alive"
chown -R detcloud "${alive%/*}"
