#!/usr/bin/env bash
# Replace the base image's EFA libraries (libfabric, rdma-core, NCCL plugin) by those of the pinned installer:
# install_efa.sh INSTALLER.tar.gz VERSIONS.json
# The kernel module is the node's. Open MPI is left out: torchrun needs none.
set -euo pipefail

readonly installer="$1" versions="$2"

pinned() {
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["efa_installer"][sys.argv[2]])' \
        "${versions}" "$1"
}

fail() {
    echo "install_efa: $*" >&2
    exit 1
}

# Remove the base's plugin. With two plugins on the loader's path, NCCL would take either, and the installer's
# packages declare no conflict with others that hold the same files.
mapfile -t others < <(dpkg-query --show --showformat='${Package} ${db:Status-Status}\n' \
    'libfabric*' 'libnccl-ofi*' 2>/dev/null | awk '$2 == "installed" { print $1 }')
((${#others[@]} == 0)) || dpkg --purge --force-depends "${others[@]}"
rm -rf /opt/amazon/efa /opt/amazon/ofi-nccl /opt/amazon/aws-ofi-nccl /etc/ld.so.conf.d/aws-ofi-nccl.conf

work="$(mktemp --directory)"
readonly work
trap 'rm -rf "${work}"' EXIT
tar --extract --gzip --file "${installer}" --directory "${work}" --no-same-owner
export DEBIAN_FRONTEND=noninteractive
# --build-ngc is the installer's mode for NVIDIA's images: no kernel module, no limits and no test run. NCCL uses
# the plugin's name only with NCCL_NET_PLUGIN=ofi, so that nodes without EFA work.
cd "${work}/aws-efa-installer"
./efa_installer.sh -y --build-ngc --skip-kmod --skip-limit-conf --skip-mpi --no-verify
cd /

printf '%s\n' /opt/amazon/efa/lib /opt/amazon/ofi-nccl/lib >/etc/ld.so.conf.d/000-efa.conf
ldconfig
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /var/cache/ldconfig/aux-cache
rm -rf /var/log/apt /var/log/dpkg.log

# Check the installed files, because the installer's status is not reliable.
libfabric="$(pinned libfabric)"
plugin="$(pinned aws_ofi_nccl)"
found="$(/opt/amazon/efa/bin/fi_info --version)"
[[ "${found}" == *"libfabric: ${libfabric}"* ]] ||
    fail "libfabric is not ${libfabric}, but: ${found//$'\n'/ }"
grep --quiet --text --fixed-strings "aws-ofi-nccl ${plugin}" /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so ||
    fail "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so is not aws-ofi-nccl ${plugin}"
mapfile -t plugins < <(find / -xdev -name 'libnccl-net-ofi.so' | sort)
[[ "${plugins[*]}" == /opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so ]] ||
    fail "more than one plugin: ${plugins[*]}"
