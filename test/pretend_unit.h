/* A matrix unit that a device is to claim.
 *
 * SPDX-License-Identifier: MIT */
#ifndef PRETEND_UNIT_H
#define PRETEND_UNIT_H

#include <stddef.h>

struct pretend_unit {
    const char *name, *extension;
    size_t lanes;       /* of its sub-groups, the device's narrowest */
    const char *source; /* to be put before a program's own */
};

/* The one that KDA_PRETEND_UNIT names; NULL: none. */
const struct pretend_unit *pretend_unit(void);

#endif
