/* A pool of threads that share work item by item. Its idea: a call puts a job on a list, works on
 * it itself, and threads without work join whatever job has items left. Each thread begins with a
 * range of items of its own, the same in every call of as many, so that what a call leaves in a
 * core's cache is where the next one needs it; then it takes what is left of others'. The lock is
 * for who joins and leaves.
 *
 * Waking a thread costs the waker and the woken as much as a small call takes (8 and 7 us on a
 * virtual EPYC, 2026-11-30). So a job has no more threads than are worth that, each of which wakes
 * two more. And who runs out of work first looks for more as long as that, where each thread can
 * have a core, and only then sleeps: jobs in close succession find threads awake, which are worth
 * having for less, and an idle pool costs nothing.
 *
 * SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* CPU_COUNT */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

#define LOOK_NS 20000
#define WAKE_NS 16000 /* work that is worth waking a thread, */
#define JOIN_NS 4000  /* and worth having one that is awake */
#define MOST_THREADS 1024

struct job {
    void (*fn)(void *, int64_t, int32_t);
    void *arg;
    int64_t count;
    int32_t lanes;     /* that may take part; each has a range of items */
    int32_t next_wake; /* the first of them whose thread may be asleep */
    atomic_int busy;   /* threads inside */
    struct job *link;
    atomic_llong next[MOST_THREADS]; /* in each range: items from here on are not handed out yet */
};

struct kda_pool {
    pthread_mutex_t lock; /* guards everything below but what is atomic */
    pthread_cond_t done;
    struct job *jobs;     /* those that may be joined, oldest first */
    atomic_int joinable;  /* how many those are */
    atomic_llong last_ns; /* when a job ended */
    bool look;
    atomic_bool quit;
    int32_t helpers;
    struct helper {
        pthread_t thread;
        struct kda_pool *pool;
        int32_t lane; /* a job's owner has 0 */
        pthread_cond_t work;
        bool asleep; /* waits for it */
    } helper[];
};

static void link_job(struct kda_pool *pool, struct job *job)
{
    struct job **last = &pool->jobs;
    while (*last)
        last = &(*last)->link;
    *last = job;
    atomic_fetch_add(&pool->joinable, 1);
}

static void unlink_job(struct kda_pool *pool, const struct job *job)
{
    for (struct job **at = &pool->jobs; *at; at = &(*at)->link) {
        if (*at == job) {
            *at = job->link;
            atomic_fetch_sub(&pool->joinable, 1);
            return;
        }
    }
}

/* Where a range of items begins, and where the one before it ends. */
static int64_t range_begin(const struct job *job, int64_t range)
{
    return job->count * range / job->lanes;
}

/* An item that nobody has had, -1 if there is none. */
static int64_t take(struct job *job, int32_t lane)
{
    for (int32_t i = 0; i < job->lanes; i++) {
        const int32_t range = (lane + i) % job->lanes;
        const int64_t end = range_begin(job, range + 1);
        if (atomic_load(&job->next[range]) >= end)
            continue;
        const int64_t item = atomic_fetch_add(&job->next[range], 1);
        if (item < end)
            return item;
    }
    return -1;
}

/* The first job that a lane has a part in. */
static struct job *find_job(const struct kda_pool *pool, int32_t lane)
{
    struct job *job = pool->jobs;
    while (job && lane >= job->lanes)
        job = job->link;
    return job;
}

static void wake(struct helper *helper)
{
    helper->asleep = false;
    pthread_cond_signal(&helper->work);
}

/* Wakes two of a job's helpers, who will do the same. */
static void wake_two(struct kda_pool *pool, struct job *job)
{
    for (int n = 0; n < 2 && job->next_wake < job->lanes; job->next_wake++) {
        struct helper *helper = &pool->helper[job->next_wake - 1];
        n += helper->asleep;
        if (helper->asleep)
            wake(helper);
    }
}

/* Works on a job until no item is left; nobody joins it after that. Called and returns with the
 * lock held. */
static void take_part(struct kda_pool *pool, struct job *job, int32_t lane)
{
    atomic_fetch_add(&job->busy, 1);
    wake_two(pool, job);
    pthread_mutex_unlock(&pool->lock);
    for (int64_t item; (item = take(job, lane)) >= 0;)
        job->fn(job->arg, item, lane);
    pthread_mutex_lock(&pool->lock);
    unlink_job(pool, job);
    if (atomic_fetch_sub(&job->busy, 1) == 1)
        pthread_cond_broadcast(&pool->done);
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Waits a moment for a number to become zero, or other than zero. */
static void look_for(const struct kda_pool *pool, atomic_int *number, bool zero)
{
    const int64_t until = pool->look ? now_ns() + LOOK_NS : 0;
    while (!atomic_load(number) != zero && !atomic_load(&pool->quit) && now_ns() < until) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
    }
}

static void *help(void *arg)
{
    struct helper *self = arg;
    struct kda_pool *pool = self->pool;
    pthread_mutex_lock(&pool->lock);
    while (!atomic_load(&pool->quit)) {
        struct job *job = find_job(pool, self->lane);
        if (job) {
            take_part(pool, job, self->lane);
            pthread_mutex_unlock(&pool->lock);
            look_for(pool, &pool->joinable, false);
            pthread_mutex_lock(&pool->lock);
        } else {
            self->asleep = true;
            while (self->asleep)
                pthread_cond_wait(&self->work, &pool->lock);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Cores that this process may use: containers and task sets leave fewer than there are. */
static int32_t count_cores(void)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef CPU_COUNT
    cpu_set_t allowed;
    if (!sched_getaffinity(0, sizeof allowed, &allowed))
        cores = CPU_COUNT(&allowed);
#endif
    return cores < 1 ? 1 : cores > MOST_THREADS ? MOST_THREADS : (int32_t)cores;
}

/* A thread that leaves signals to the caller's threads. */
static int start(struct helper *helper)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&helper->thread, NULL, help, helper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

struct kda_pool *kda_pool_create(const kda_context *ctx, int32_t threads)
{
    const int32_t cores = count_cores();
    if (!threads)
        threads = cores;
    struct kda_pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof pool->helper[0]);
    if (!pool)
        return NULL;
    pool->look = threads <= cores;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (; pool->helpers < threads - 1; pool->helpers++) {
        struct helper *next = &pool->helper[pool->helpers];
        next->pool = pool;
        next->lane = pool->helpers + 1;
        pthread_cond_init(&next->work, NULL);
        if (start(next)) {
            pthread_cond_destroy(&next->work);
            break; /* a system that refuses a thread gets a smaller pool */
        }
    }
    if (pool->helpers < threads - 1)
        kda_log(ctx, KDA_LOG_WARN, "pthread_create failed: %d threads instead of %d",
                (int)pool->helpers + 1, (int)threads);
    return pool;
}

void kda_pool_destroy(struct kda_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->quit, true);
    for (int32_t i = 0; i < pool->helpers; i++)
        wake(&pool->helper[i]);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->helpers; i++) {
        pthread_join(pool->helper[i].thread, NULL);
        pthread_cond_destroy(&pool->helper[i].work);
    }
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

int32_t kda_pool_threads(const struct kda_pool *pool)
{
    return pool->helpers + 1;
}

int32_t kda_pool_lanes(struct kda_pool *pool, double ns)
{
    const bool awake = pool->look && now_ns() - atomic_load(&pool->last_ns) < LOOK_NS;
    const double helpers = ns / (awake ? JOIN_NS : WAKE_NS);
    return 1 + (helpers < pool->helpers ? (int32_t)helpers : pool->helpers);
}

void kda_pool_run(struct kda_pool *pool, int64_t count, int32_t lanes,
                  void (*fn)(void *, int64_t, int32_t), void *arg)
{
    struct job job;
    job.fn = fn;
    job.arg = arg;
    job.count = count;
    job.lanes = lanes < count ? lanes : (int32_t)count;
    job.next_wake = 1;
    atomic_init(&job.busy, 0);
    job.link = NULL;
    for (int32_t i = 0; i < job.lanes; i++)
        atomic_init(&job.next[i], range_begin(&job, i));
    pthread_mutex_lock(&pool->lock);
    if (job.lanes > 1)
        link_job(pool, &job);
    take_part(pool, &job, 0);
    pthread_mutex_unlock(&pool->lock);
    look_for(pool, &job.busy, true);
    pthread_mutex_lock(&pool->lock);
    while (atomic_load(&job.busy))
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    atomic_store(&pool->last_ns, now_ns());
}
