#!/usr/bin/env bash
# Installs the Debian packages of the test cluster that this machine lacks. None of their services is started here:
# they run in the nodes' namespaces alone.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly policy=/usr/sbin/policy-rc.d

if [[ "$(id --user)" != 0 ]]; then
    printf 'make test-cluster makes namespaces, mounts and networks of its own: run it as root\n' >&2
    exit 1
fi
if ! command -v apt-get >/dev/null; then
    printf 'make test-cluster takes Slurm from Debian packages: run it on Debian 12 (no apt-get here)\n' >&2
    exit 1
fi

missing=()
while read -r package; do
    state="$(dpkg-query --show --showformat='${db:Status-Status}' "${package}" 2>/dev/null || true)"
    [[ "${state}" == installed ]] || missing+=("${package}")
done < <(grep --invert-match --extended-regexp '^(#|$)' "${here}/packages.txt")

if ((${#missing[@]} == 0)); then
    exit 0
fi
printf 'installing for the test cluster: %s\n' "${missing[*]}"
# 101 forbids packages to start their services, where this machine itself runs systemd.
if [[ ! -e "${policy}" ]]; then
    printf '#!/bin/sh\nexit 101\n' >"${policy}"
    chmod 0755 "${policy}"
    trap 'rm --force "${policy}"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
apt-get install --yes --quiet=2 --no-install-recommends "${missing[@]}" </dev/null
