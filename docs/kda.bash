# What bash completes for libkda's tools, taken from their --help: options, and where an option's
# line lists the words that its argument may be, a | b | c, those; else files.
#
# SPDX-License-Identifier: MIT
_kda() {
    local words
    words=$("$1" --help 2>/dev/null)
    case $2:$3 in
    -*) words=$(grep -oE -- '(^|[ ,])--[a-z][a-z0-9-]*' <<<"$words" | tr -d ' ,' | sort -u) ;;
    *:-*) words=$(grep -E -- "^ .*$3[, ]" <<<"$words" | grep -oE '[a-z0-9]+( ?\| ?[a-z0-9]+)+' |
        tr '|' ' ') ;;
    *) words= ;;
    esac
    # shellcheck disable=SC2207 # no word has blanks in it
    COMPREPLY=($(compgen -W "$words" -- "$2"))
}
complete -o default -F _kda kdarun kdainfo kdabench kdatest
