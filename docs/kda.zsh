#compdef kdarun kdainfo kdabench kdatest
# SPDX-License-Identifier: MIT
_gnu_generic
