#!/usr/bin/env bash
# Lets root alone reach the instance metadata service, which hands out the node's credentials to whoever asks.
# Users' jobs need none: data come through Lustre. Run at every boot; rules that are there already stay.
set -euo pipefail

# OUTPUT sees the processes of this network namespace, enroot's and host-network containers included: the owner is
# the user outside the container. What Docker bridges is forwarded, with no owner; PREROUTING of mangle sees it
# before the rules that Docker puts on top of FORWARD whenever it starts, and can drop but not reject.
block() {
    local command="$1" address="$2"
    ensure "${command}" filter OUTPUT --destination "${address}" --match owner ! --uid-owner 0 --jump REJECT
    ensure "${command}" mangle PREROUTING --destination "${address}" --jump DROP
}

# First in its chain: a rule added to the end would come after those that accept.
ensure() {
    local command="$1" table="$2" chain="$3"
    shift 3
    "${command}" --wait 60 --table "${table}" --check "${chain}" "$@" 2>/dev/null ||
        "${command}" --wait 60 --table "${table}" --insert "${chain}" 1 "$@"
}

block iptables 169.254.169.254/32
if [[ -d "${DESTDIR:-}/proc/sys/net/ipv6" ]]; then
    block ip6tables fd00:ec2::254/128
fi
