/* A machine without any OpenCL device: AUTO falls back to the CPU backend and says so, OPENCL says
 * what is missing. meson runs this with OCL_ICD_VENDORS naming a folder that does not exist.
 *
 * SPDX-License-Identifier: MIT */
#include <check.h>
#include <stdlib.h>

#include "runner.h"
#include "trial.h"

static struct log said = {.lock = PTHREAD_MUTEX_INITIALIZER};

static kda_status open_backend(kda_backend backend, kda_context **ctx)
{
    log_clear(&said);
    return kda_context_create(
        ctx, kda_context_params(.backend = backend, .log = log_line, .log_data = &said));
}

START_TEST(test_there_is_none)
{
    cl_uint platforms = 0;
    ck_assert(clGetPlatformIDs(0, NULL, &platforms) != CL_SUCCESS || !platforms);
}
END_TEST

START_TEST(test_opencl)
{
    kda_context *ctx = (kda_context *)(void *)&said;
    ck_assert_int_eq(open_backend(KDA_OPENCL, &ctx), KDA_NO_DEVICE);
    ck_assert_ptr_null(ctx);
    ck_assert_int_eq(said.lines[KDA_LOG_ERROR], 1);
}
END_TEST

START_TEST(test_auto)
{
    kda_context *ctx;
    ck_assert_int_eq(open_backend(KDA_AUTO, &ctx), KDA_OK);
    ck_assert_int_eq(kda_context_backend(ctx), KDA_CPU);
    ck_assert_int_eq(said.lines[KDA_LOG_ERROR], 0);
    ck_assert_int_eq(said.lines[KDA_LOG_WARN], 1);
    kda_context_destroy(&ctx);
}
END_TEST

START_TEST(test_no_params)
{
    kda_context *ctx;
    ck_assert_int_eq(kda_context_create(&ctx, NULL), KDA_OK);
    ck_assert_int_eq(kda_context_backend(ctx), KDA_CPU);
    kda_context_destroy(&ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("no device");
    TCase *tc = tcase_create("no device");
    tcase_add_test(tc, test_there_is_none);
    tcase_add_test(tc, test_opencl);
    tcase_add_test(tc, test_auto);
    tcase_add_test(tc, test_no_params);
    suite_add_tcase(suite, tc);
    return runner_run(srunner_create(suite)) ? EXIT_FAILURE : EXIT_SUCCESS;
}
