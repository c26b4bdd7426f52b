# Checks the machine's NVIDIA GPUs, and makes the GPUs devices of containers. The boot fails if a
# GPU of the machine type does not work. This file is a part of the boot script, which sets `root`
# and `gpus`: the number of GPUs of the machine type, or "" if the number is unknown.

# Source: "CUDA compatibility": the oldest driver for images with any minor version of CUDA 12.
driver_min=525
# NVIDIA's packages of the container toolkit, and the fingerprint of the key that signs them. The
# environment of a boot is root's, so no other user can name another place. The place needs no trust:
# the fingerprint has no variable.
toolkit_place="${DETCLOUD_TOOLKIT_PLACE:-https://nvidia.github.io/libnvidia-container}"
toolkit_key=C95B321B61E88C1809C4F759DDCAE044F796ECB0
toolkit_version=1.18.1-1

# Prints the number of NVIDIA GPUs on the PCI bus. GPUs without a driver count.
count_gpus_on_bus() {
  local device count=0
  for device in "$root"/sys/bus/pci/devices/*; do
    # 0x10de is NVIDIA. 0x0300 and 0x0302 are the classes of VGA and 3D controllers.
    if [ -e "$device/vendor" ] && [ "$(cat "$device/vendor")" = 0x10de ]; then
      case "$(cat "$device/class")" in 0x0300* | 0x0302*) count=$((count + 1)) ;; esac
    fi
  done
  echo "$count"
}

# Ends the boot unless the driver is new enough and sees all GPUs. $1 is the number of GPUs.
check_driver() {
  local listed driver working
  command -v nvidia-smi > /dev/null \
    || fail_boot "the machine image has no NVIDIA driver, but the machine has $1 NVIDIA GPU(s): choose an image with a driver"
  listed="$(timeout 120 nvidia-smi --query-gpu=driver_version,uuid --format=csv,noheader 2>&1)" \
    || fail_boot "the NVIDIA driver does not work: $(tail -n 1 <<< "$listed"). The image's driver may not support this GPU"
  working="$(grep -c 'GPU-' <<< "$listed" || true)"
  [ "$working" -ge "$1" ] \
    || fail_boot "$working of $1 GPUs work, according to nvidia-smi: the hardware is broken or the driver does not support it"
  driver="${listed%%,*}"
  [ "${driver%%.*}" -ge "$driver_min" ] 2> /dev/null \
    || fail_boot "the NVIDIA driver $driver is too old: trial images with CUDA 12 need $driver_min or newer"
}

# Installs NVIDIA's container toolkit in a fixed version. The key of the packages is checked.
install_toolkit() {
  local folder fingerprints
  folder="$(mktemp -d)"
  curl -fsSL --retry 5 --retry-all-errors -o "$folder/key" "$toolkit_place/gpgkey" \
    || fail_boot "NVIDIA's container toolkit cannot be installed: $toolkit_place cannot be reached. Use a machine image that contains the toolkit, or give the machine a way there"
  fingerprints="$(gpg --batch --homedir "$folder" --show-keys --with-colons "$folder/key" \
    | awk -F: '$1 == "pub" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }' || true)"
  [ "$fingerprints" = "$toolkit_key" ] \
    || fail_boot "the key of NVIDIA's packages at $toolkit_place is not the expected key $toolkit_key"
  mkdir -p "$root/etc/apt/keyrings" "$root/etc/apt/sources.list.d"
  gpg --batch --homedir "$folder" --dearmor < "$folder/key" > "$root/etc/apt/keyrings/detcloud-nvidia.gpg"
  echo "deb [signed-by=$root/etc/apt/keyrings/detcloud-nvidia.gpg] $toolkit_place/stable/deb/$(dpkg --print-architecture) /" \
    > "$root/etc/apt/sources.list.d/detcloud-nvidia.list"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get -o DPkg::Lock::Timeout=300 -q update \
    && apt-get -o DPkg::Lock::Timeout=300 -qy install --no-install-recommends \
      "nvidia-container-toolkit=$toolkit_version" "nvidia-container-toolkit-base=$toolkit_version" \
      "libnvidia-container-tools=$toolkit_version" "libnvidia-container1=$toolkit_version"; } \
    || fail_boot "NVIDIA's container toolkit $toolkit_version could not be installed from $toolkit_place"
  rm -r "$folder"
}

# Describes the GPUs to Docker by CDI. A reload of systemd resets the devices of a container, and so
# removes GPUs that NVIDIA's hook added. GPUs from CDI stay.
describe_gpus() {
  mkdir -p "$root/etc/cdi"
  nvidia-ctk cdi generate --device-name-strategy=uuid --output="$root/etc/cdi/nvidia.yaml" \
    || fail_boot "nvidia-ctk cannot describe the GPUs to Docker"
}

# Docker's settings: containers outlive a restart of Docker. On a machine with GPUs, Docker reads
# CDI descriptions, and manages the cgroups itself, so that a reload of systemd removes no GPUs. On
# Google Cloud, containers get a control group outside `system.slice`, whose services may read the
# metadata. A control group that the machine image has chosen stays.
set_docker_options() {
  mkdir -p "$root/etc/docker"
  python3 - "$root/etc/docker/daemon.json" "$1" "${2:-}" <<'SETTINGS'
import json, os, sys
path, gpus, cloud = sys.argv[1], int(sys.argv[2]), sys.argv[3]
settings = {}
if os.path.exists(path):
    with open(path) as file:
        settings = json.load(file)
settings["live-restore"] = True
if gpus:
    options = [it for it in settings.get("exec-opts", []) if not it.startswith("native.cgroupdriver")]
    settings["exec-opts"] = options + ["native.cgroupdriver=cgroupfs"]
    settings.setdefault("features", {})["cdi"] = True
if cloud == "gcp":
    is_own_driver = "native.cgroupdriver=cgroupfs" in settings.get("exec-opts", [])
    parent = "/detcloud-trials" if is_own_driver else "detcloud-trials.slice"
    settings.setdefault("cgroup-parent", parent)
with open(path, "w") as file:
    json.dump(settings, file, indent=1)
SETTINGS
}

gpu_count="${gpus:-$(count_gpus_on_bus)}"
if [ "$gpu_count" -gt 0 ]; then
  check_driver "$gpu_count"
  command -v nvidia-ctk > /dev/null || install_toolkit
  describe_gpus
fi
set_docker_options "$gpu_count" "${cloud:-}"
