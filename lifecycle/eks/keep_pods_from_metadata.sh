#!/usr/bin/env bash
# Keeps pods from the instance metadata service, which hands out the node's credentials to whoever asks. The cluster's
# network policy does the same; this holds also before the CNI's agent knows of a pod, and without the policy.
# What a pod sends is forwarded, and dropped here. What the node sends is not, and goes on: that includes pods in its
# own network, as the CNI, device plugins and agents. EKS Pod Identity has another address, 169.254.170.23.
# Run at every boot; rules that are there already stay.
set -euo pipefail

# PREROUTING of mangle comes before whatever the CNI and kube-proxy, which write iptables too, put into FORWARD; their
# own rules there only mark. kubelet needs iptables, so images of EKS have it (amazon-eks-ami, install-worker.sh).
drop() {
    local command="$1" rule=(--destination "$2" --jump DROP)
    "${command}" --wait 60 --table mangle --check PREROUTING "${rule[@]}" 2>/dev/null ||
        "${command}" --wait 60 --table mangle --insert PREROUTING 1 "${rule[@]}"
}

drop iptables 169.254.169.254/32
if [[ -d "${DESTDIR:-}/proc/sys/net/ipv6" ]]; then
    drop ip6tables fd00:ec2::254/128
fi
