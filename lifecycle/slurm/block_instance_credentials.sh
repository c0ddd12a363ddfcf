#!/usr/bin/env bash
# Allows only root to reach the instance metadata service, which gives the node's credentials to any caller.
# Users with sudo, or in the group docker, are root. Training needs no credentials, because data come through
# Lustre. Reading s3:// or pulling an image from ECR on a node needs root, or the user's own credentials.
# Runs at every boot; existing rules stay.
set -euo pipefail

# OUTPUT sees the processes of this network namespace, including containers of enroot and with the host's network.
# Their owner is the user outside the container. Packets from Docker's bridges are forwarded and have no owner.
# PREROUTING of mangle sees them before the rules that Docker puts on top of FORWARD at each start. It can drop
# packets, but not reject them.
block() {
    local command="$1" address="$2"
    local from_users=(filter OUTPUT --destination "${address}" --match owner ! --uid-owner 0)
    ensure "${command}" "${from_users[@]}" --jump REJECT
    # This rule comes before the refusal. The kernel's log names the user, at most ten times a minute. A node whose
    # kernel cannot log refuses too.
    ensure "${command}" "${from_users[@]}" --match limit --limit 10/minute \
        --jump LOG --log-prefix "instance-credentials: " --log-uid ||
        printf 'attempts on %s are refused but not logged\n' "${address}" >&2
    ensure "${command}" mangle PREROUTING --destination "${address}" --jump DROP
}

# The rule is the first of its chain, because a rule at the end would come after those that accept.
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
