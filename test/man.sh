#!/bin/sh
# Man pages by the rules of mandoc, but for their dates: help2man writes a month, kda(3) has none.
# Skipped without mandoc.
# Usage: man.sh PAGE...
#
# SPDX-License-Identifier: MIT
set -u
command -v mandoc >/dev/null || exit 77
for page in "$@"; do
    if mandoc -T lint -W warning "$page" | grep -v 'missing date\|cannot parse date'; then
        exit 1
    fi
    # A page without its text breaks no rule.
    grep -q '^\.SH EXAMPLE' "$page" || {
        echo "$page has no example"
        exit 1
    }
done
