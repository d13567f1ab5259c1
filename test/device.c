/* The device under test: its names, the library's context on it, and a queue.
 *
 * SPDX-License-Identifier: MIT */
#include "harness.h"

#include "spec.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct device device;

/* Errors are expected in some tests: the last one is told only when a test fails. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last_error[512];
/* A plan that finds its kernels wrong goes on with others: right then, but not what was to be
 * tested. */
static bool found_wrong;

static void log_line(void *data, kda_log_level level, const char *line)
{
    if (level != KDA_LOG_ERROR)
        spec_log(data, level, line);
    pthread_mutex_lock(&lock);
    if (level == KDA_LOG_ERROR)
        snprintf(last_error, sizeof(last_error), "%s", line);
    found_wrong |= !strncmp(line, "wrong answer", strlen("wrong answer"));
    pthread_mutex_unlock(&lock);
}

bool device_found_wrong(void)
{
    pthread_mutex_lock(&lock);
    const bool found = found_wrong;
    found_wrong = false;
    pthread_mutex_unlock(&lock);
    return found;
}

void device_last_error(char *text, size_t size)
{
    pthread_mutex_lock(&lock);
    snprintf(text, size, "%s", last_error);
    last_error[0] = '\0';
    pthread_mutex_unlock(&lock);
}

bool device_is_processor(void)
{
    cl_device_type type = CL_DEVICE_TYPE_CPU;
    if (device.id)
        clGetDeviceInfo(device.id, CL_DEVICE_TYPE, sizeof(type), &type, NULL);
    return type & CL_DEVICE_TYPE_CPU;
}

/* In place of a driver: how it computes. */
static void name_cpu(void)
{
    kda_fact facts[64];
    size_t n = kda_context_facts(device.ctx, facts, 64);
    snprintf(device.name, sizeof(device.name), "cpu");
    for (size_t i = 0, length = 0; i < n && i < 64 && length < sizeof(device.driver); i++)
        if (!strcmp(facts[i].name, "threads") || !strcmp(facts[i].name, "vectors"))
            length +=
                (size_t)snprintf(device.driver + length, sizeof(device.driver) - length, "%s%s %s",
                                 length ? ", " : "", facts[i].name, facts[i].value);
}

static void name_opencl(void)
{
    cl_platform_id platform;
    char name[128] = "", version[128] = "";
    clGetDeviceInfo(device.id, CL_DEVICE_NAME, sizeof(device.name), device.name, NULL);
    clGetDeviceInfo(device.id, CL_DEVICE_PLATFORM, sizeof(platform), &platform, NULL);
    clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof(name), name, NULL);
    clGetDeviceInfo(device.id, CL_DRIVER_VERSION, sizeof(version), version, NULL);
    snprintf(device.driver, sizeof(device.driver), "%s %s", name, version);
}

bool device_open(const kda_context_params *params)
{
    device = (struct device){.ctx = NULL};
    memset(worst, 0, sizeof(worst));
    kda_context_params p = *params;
    p.log = log_line;
    p.log_level = KDA_LOG_WARN;
    if (kda_context_create(&device.ctx, &p) != KDA_OK) {
        fprintf(stderr, "kdatest: %s\n", last_error);
        return false;
    }
    device.id = kda_context_cl_device(device.ctx);
    device.context = kda_context_cl_context(device.ctx);
    if (!device.id) {
        name_cpu();
        return true;
    }
    name_opencl();
    cl_int code;
    device.queue = clCreateCommandQueue(device.context, device.id, 0, &code);
    if (code != CL_SUCCESS)
        fprintf(stderr, "%s: no command queue (%d)\n", device.name, (int)code);
    return code == CL_SUCCESS;
}

void device_close(void)
{
    harness_drop_plans();
    if (device.queue)
        clReleaseCommandQueue(device.queue);
    kda_context_destroy(&device.ctx);
}
