#!/usr/bin/env bash
# Lets root alone reach the instance metadata service, which hands out the node's credentials to whoever asks.
# Users' jobs need none: data come through Lustre. Run at every boot; rules that are there already stay.
set -euo pipefail

# chain, then the match. OUTPUT sees the processes of this network namespace, enroot's and host-network
# containers included: the owner is the user outside the container. FORWARD sees Docker's bridged containers,
# whose user cannot be known.
block() {
    local table="$1" address="$2"
    ensure "${table}" OUTPUT --destination "${address}" --match owner ! --uid-owner 0 --jump REJECT
    ensure "${table}" FORWARD --destination "${address}" --jump REJECT
}

# First in its chain: a rule added to the end would come after those that accept.
ensure() {
    local table="$1" chain="$2"
    shift 2
    "${table}" --wait 60 --check "${chain}" "$@" 2>/dev/null ||
        "${table}" --wait 60 --insert "${chain}" 1 "$@"
}

block iptables 169.254.169.254/32
if [[ -d "${DESTDIR:-}/proc/sys/net/ipv6" ]]; then
    block ip6tables fd00:ec2::254/128
fi
