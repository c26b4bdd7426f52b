id detcloud > /dev/null 2>&1 || useradd --system --home-dir "$work" --shell /usr/sbin/nologin detcloud
# The watchdog created the folder before the user existed.
mkdir -p "${alive%/*}"
touch "$alive"
chown -R detcloud "${alive%/*}"
