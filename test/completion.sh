#!/bin/bash
# What bash completes: options, the words of an option's argument, nothing where files are wanted.
# Usage: completion.sh KDA.BASH KDATEST
#
# SPDX-License-Identifier: MIT
set -eu
# shellcheck disable=SC1090
. "$1"
complete -p kdarun kdainfo kdabench kdatest >/dev/null
ck() {
    _kda "$tool" "$1" "$2" || : # nothing fits
    [ "${COMPREPLY[*]-}" = "$3" ] || {
        echo "after '$2', '$1' completes to: ${COMPREPLY[*]-}"
        exit 1
    }
}
tool=$2
ck --le kdatest --level
ck --v --device "--verbose --version"
ck "" --level "quick normal full"
ck f --level full
ck "" --device "auto cpu"
ck "" --tap ""
ck a file ""
