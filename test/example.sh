#!/bin/sh
# A program in the README is a file of test/, byte for byte, and prints what its last comment says.
# Usage: example.sh README SOURCE PROGRAM
#
# SPDX-License-Identifier: MIT
set -eu
awk -v first="$(head -n 1 "$2")" '
    on && /^```$/ {exit}
    before == "```c" && $0 == first {on = 1}
    on
    {before = $0}' "$1" | cmp - "$2"
wanted=$(sed -n 's|.*return st; /\* \(.*\) \*/$|\1|p' "$2")
printed=$("$3")
[ "$printed" = "$wanted" ] || {
    echo "the example printed: $printed"
    exit 1
}
