#!/bin/sh
# The program in the README is test/example.c, byte for byte, and prints what it says it prints.
# Usage: example.sh README example.c PROGRAM
#
# SPDX-License-Identifier: MIT
set -eu
awk '/^```c$/ {on = 1; next} /^```$/ && on {exit} on' "$1" | cmp - "$2"
printed=$("$3")
[ "$printed" = "OK: 10 20 30 30 20" ] || {
    echo "the example printed: $printed"
    exit 1
}
