/* Drivers that are installed but give no platform, which the loader passes over in silence: each is
 * loaded once more as the loader does it (cl_khr_icd), to hear why.
 *
 * SPDX-License-Identifier: MIT */
#include "info.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clGetExtensionFunctionAddress, clIcdGetPlatformIDsKHR */
typedef void *CL_API_CALL find_fn(const char *name);
typedef cl_int CL_API_CALL platforms_fn(cl_uint room, cl_platform_id *ids, cl_uint *count);

/* Why a library gives no platform; false: it gives one. It stays loaded: not every driver survives
 * being unloaded. */
static bool hear_why(const char *library, char *why, size_t size)
{
    union {
        void *object;
        find_fn *find;
        platforms_fn *platforms;
    } f = {NULL};
    cl_uint count = 0;
    void *driver = *library ? dlopen(library, RTLD_LAZY) : NULL;
    if (!driver) {
        snprintf(why, size, "%s", *library ? dlerror() : "can't be read, or names no library");
        return true;
    }
    f.object = dlsym(driver, "clGetExtensionFunctionAddress");
    if (f.object)
        f.object = f.find("clIcdGetPlatformIDsKHR");
    if (!f.object) {
        snprintf(why, size, "%s: not an OpenCL driver", library);
        return true;
    }
    cl_int code = f.platforms(0, NULL, &count);
    snprintf(why, size,
             "%s: no platform (OpenCL error %d): no device of its kind, or none that this user may "
             "open",
             library, code);
    return code || !count;
}

/* A file names its library in the first line. */
static void try_file(cJSON *list, const char *path)
{
    char library[1024] = "", why[1200];
    FILE *file = fopen(path, "r");
    if (file && fgets(library, sizeof library, file))
        library[strcspn(library, "\r\n")] = '\0';
    if (file)
        fclose(file);
    if (!hear_why(library, why, sizeof why))
        return;
    cJSON *driver = cJSON_CreateObject();
    cJSON_AddItemToArray(list, driver);
    cJSON_AddStringToObject(driver, "file", path);
    cJSON_AddStringToObject(driver, "why", why);
}

static int is_icd(const struct dirent *entry)
{
    const size_t length = strlen(entry->d_name);
    return length > 4 && !strcmp(entry->d_name + length - 4, ".icd");
}

void info_add_drivers(cJSON *report)
{
    const char *own = getenv("OCL_ICD_VENDORS"), *folder = own ? own : "/etc/OpenCL/vendors";
    cJSON *list = cJSON_AddArrayToObject(report, "drivers");
    struct dirent **entries;
    const int count = scandir(folder, &entries, is_icd, alphasort);
    for (int i = 0; i < count; ++i) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        try_file(list, path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
}
