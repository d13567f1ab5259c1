/* What kdainfo says of installed drivers that give no platform.
 *
 * SPDX-License-Identifier: MIT */
#include "files.h"
#include "spec.h"
#include "test_tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kdainfo;

static void write_icd(const char *path, const char *library)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(library, file);
    fclose(file);
}

START_TEST(test_broken_drivers)
{
    static const char *const files[][3] = {
        {"v/a.icd", "libmissing.so\n", "v/a.icd: libmissing.so: cannot open shared object file"},
        {"v/b.icd", "libm.so.6", "v/b.icd: libm.so.6: not an OpenCL driver\n"},
        {"v/c.icd", "", "v/c.icd: can't be read, or names no library\n"},
    };
    char *named = getenv("OCL_ICD_VENDORS");
    named = named ? strdup(named) : NULL;
    mkdir("v", 0700);
    for (int i = 0; i < COUNT(files); i++)
        write_icd(files[i][0], files[i][1]);
    setenv("OCL_ICD_VENDORS", "v", 1);
    program = kdainfo;
    struct outcome o = run_arguments((const char *const[]){NULL});
    if (named)
        setenv("OCL_ICD_VENDORS", named, 1);
    else
        unsetenv("OCL_ICD_VENDORS");
    free(named);
    CHECK_OUTCOME(&o, EXIT_SUCCESS, "");
    for (int i = 0; i < COUNT(files); i++) {
        ck_assert_msg(strstr(o.out, files[i][2]), "%.2000s", o.out);
        unlink(files[i][0]);
    }
    ck_assert_ptr_nonnull(strstr(o.out, "\n  none: no OpenCL driver works (clGetPlatformIDs: "));
    rmdir("v");
}
END_TEST

Suite *suite_drivers(const char *path)
{
    Suite *suite = suite_create("drivers");
    TCase *tcase = tcase_create("drivers");
    kdainfo = path;
    tcase_add_checked_fixture(tcase, folder_enter, folder_leave);
    tcase_add_test(tcase, test_broken_drivers);
    suite_add_tcase(suite, tcase);
    return suite;
}
