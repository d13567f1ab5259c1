/* What the parts of the API test share. Each part adds its cases to the suite of one device.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TEST_API_H
#define TEST_API_H

#include <check.h>

#include "trial.h"

/* The device under test. */
extern struct rig *rig;

void add_objects(Suite *suite); /* test_objects.c: contexts and plans from cradle to grave */
void add_structs(Suite *suite); /* test_structs.c: parameter structs of other versions */
void add_rules(Suite *suite);   /* test_rules.c: each documented rule */
void add_views(Suite *suite);   /* test_views.c: the rules that all tensors share */
void add_threads(Suite *suite); /* test_threads.c: objects shared by threads */
void add_tuned(Suite *suite);   /* test_tuned.c: rows of tuned choices */

/* Fails the test unless the last call answered as wanted, with one ERROR line that has all the
 * words if it failed, and none if not. what: the change, for the message. */
void expect(kda_status got, kda_status wanted, const char *words, const char *what);

/* Changes the valid call of a base, tries it, and expects the status: with every output untouched
 * if it fails, and the valid call giving the same bits as before. */
void try_call(enum base base, bool device, void (*change)(struct trial *t), kda_status status,
              const char *words, const char *what);

#endif
