#!/usr/bin/env bash
# Blocks pods from the instance metadata service, which gives the node's credentials to any caller. The cluster's
# network policy does the same. These rules also apply before the CNI's agent knows a pod, and without the policy.
# Packets from pods are forwarded, and dropped here. Packets from the node itself are not affected, including those
# of pods in the node's network, such as the CNI. EKS Pod Identity has another address, 169.254.170.23.
# Runs at every boot; existing rules stay.
set -euo pipefail

# PREROUTING of mangle comes before the rules of the CNI and of kube-proxy in FORWARD. Their rules in PREROUTING only
# mark packets. kubelet needs iptables, so images of EKS have it (amazon-eks-ami, install-worker.sh).
drop() {
    local command="$1" rule=(--destination "$2" --jump DROP)
    "${command}" --wait 60 --table mangle --check PREROUTING "${rule[@]}" 2>/dev/null ||
        "${command}" --wait 60 --table mangle --insert PREROUTING 1 "${rule[@]}"
}

drop iptables 169.254.169.254/32
if [[ -d "${DESTDIR:-}/proc/sys/net/ipv6" ]]; then
    drop ip6tables fd00:ec2::254/128
fi
