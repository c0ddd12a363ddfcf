#!/usr/bin/env bash
# Lifecycle configuration of a SageMaker Studio space. It runs as the space's user at every start. SageMaker starts no
# space if it fails or takes more than five minutes. So it never fails, and the terminal shows what is missing. The
# deployment replaces the names between at signs.
set -uo pipefail

readonly CURRENT="@CURRENT@" REGION="@REGION@"
readonly LOG="${HOME}/cluster-set-up.log" FOLDER=/tmp/cluster-set-up

set_up() {
    local source
    rm -rf "${FOLDER}"
    source="$(aws s3 cp --only-show-errors --region "${REGION}" "${CURRENT}" -)" &&
        aws s3 cp --recursive --only-show-errors --region "${REGION}" "${source}" "${FOLDER}" &&
        timeout 240 python3 "${FOLDER}/set_up_space.py"
}

if set_up >"${LOG}" 2>&1; then
    exit 0
fi
tail --lines 20 "${LOG}"
mkdir --parents "${HOME}/.config"
printf 'echo "This space lacks what it needs for the cluster: see %s, then stop and start it." >&2\n' "${LOG}" \
    >"${HOME}/.config/cluster.sh"
grep --quiet --no-messages cluster.sh "${HOME}/.bashrc" ||
    printf '\n. ~/.config/cluster.sh\n' >>"${HOME}/.bashrc"
