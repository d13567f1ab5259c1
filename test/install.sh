#!/bin/sh
# What another project sees of libkda: the installed header and kda.pc, with the shared library and
# with the static one alone; the source tree as a meson subproject. test/example.c is the other
# project's program.
# Usage: install.sh SOURCE_ROOT BUILD_ROOT CC...
#
# SPDX-License-Identifier: MIT
set -eu
source=$1 build=$2
shift 2
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

run() {
    printed=$("$@")
    [ "$printed" = "OK: 10 20 30 30 20" ] || {
        echo "$1 printed: $printed"
        exit 1
    }
}

meson install -C "$build" --no-rebuild --destdir "$stage" >"$stage/log" || {
    cat "$stage/log"
    exit 1
}
pc=$(find "$stage" -name kda.pc)
lib=$(find "$stage" -name libkda.a -exec dirname {} \;)
export PKG_CONFIG_PATH="${pc%/*}" PKG_CONFIG_SYSROOT_DIR="$stage"

echo "shared library"
# shellcheck disable=SC2046 # a list of options
"$@" -o "$stage/shared" "$source/test/example.c" $(pkg-config --cflags --libs kda)
LD_LIBRARY_PATH="$lib" ldd "$stage/shared" | grep -q "$lib/libkda.so"
LD_LIBRARY_PATH="$lib" run "$stage/shared"

echo "static library"
rm "$lib"/libkda.so*
# shellcheck disable=SC2046
"$@" -o "$stage/static" "$source/test/example.c" $(pkg-config --static --cflags --libs kda)
if ldd "$stage/static" | grep libkda; then
    exit 1
fi
run "$stage/static"

echo "meson subproject"
unset PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
mkdir -p "$stage/user/subprojects"
ln -s "$source" "$stage/user/subprojects/kda"
cp "$source/test/example.c" "$stage/user/"
cat >"$stage/user/meson.build" <<'MESON'
project('user', 'c')
executable('user', 'example.c', dependencies: dependency('kda', fallback: 'kda'))
MESON
cd "$stage/user"
for kind in shared static; do
    { CC="$*" meson setup --force-fallback-for=kda -Ddefault_library=$kind $kind &&
        ninja -C $kind user; } >"$stage/log" 2>&1 || {
        cat "$stage/log"
        exit 1
    }
    run $kind/user
done
ldd shared/user | grep -q libkda
if ldd static/user | grep libkda; then
    exit 1
fi
