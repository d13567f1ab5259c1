/* A pool of threads that share work item by item. Its idea: a call puts a job on a list, works on
 * it itself, and idle threads join whatever job has items left. Nobody spins; a job's owner is
 * woken by the last thread that leaves it.
 *
 * SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

struct job {
    void (*fn)(void *, int64_t, int32_t);
    void *arg;
    int64_t next, count; /* items not handed out yet: next .. count - 1 */
    int32_t lanes;       /* threads that ever joined */
    int32_t busy;        /* threads inside */
    struct job *link;
};

struct kda_pool {
    pthread_mutex_t lock; /* guards everything below and every job */
    pthread_cond_t work, done;
    struct job *jobs; /* those with items left, oldest first */
    bool quit;
    int32_t helpers;
    pthread_t thread[];
};

static void unlink_job(struct kda_pool *pool, const struct job *job)
{
    for (struct job **at = &pool->jobs; *at; at = &(*at)->link) {
        if (*at == job) {
            *at = job->link;
            return;
        }
    }
}

/* Works on a job until no item is left. Called and returns with the lock held. */
static void take_part(struct kda_pool *pool, struct job *job)
{
    int32_t lane = job->lanes++;
    job->busy++;
    while (job->next < job->count) {
        int64_t item = job->next++;
        if (job->next == job->count)
            unlink_job(pool, job);
        pthread_mutex_unlock(&pool->lock);
        job->fn(job->arg, item, lane);
        pthread_mutex_lock(&pool->lock);
    }
    if (--job->busy == 0)
        pthread_cond_broadcast(&pool->done);
}

static void *helper(void *arg)
{
    struct kda_pool *pool = arg;
    pthread_mutex_lock(&pool->lock);
    while (!pool->quit) {
        if (pool->jobs)
            take_part(pool, pool->jobs);
        else
            pthread_cond_wait(&pool->work, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

struct kda_pool *kda_pool_create(int32_t threads)
{
    if (!threads) {
        long cores = sysconf(_SC_NPROCESSORS_ONLN);
        threads = cores < 1 ? 1 : cores > 1024 ? 1024 : (int32_t)cores;
    }
    struct kda_pool *pool = calloc(1, sizeof *pool + (size_t)threads * sizeof pool->thread[0]);
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    /* A system that refuses a thread gets a smaller pool. */
    while (pool->helpers < threads - 1 &&
           !pthread_create(&pool->thread[pool->helpers], NULL, helper, pool))
        pool->helpers++;
    return pool;
}

void kda_pool_destroy(struct kda_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->quit = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->helpers; i++)
        pthread_join(pool->thread[i], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

int32_t kda_pool_threads(const struct kda_pool *pool)
{
    return pool->helpers + 1;
}

void kda_pool_run(struct kda_pool *pool, int64_t count, void (*fn)(void *, int64_t, int32_t),
                  void *arg)
{
    if (count < 1)
        return;
    struct job job = {.fn = fn, .arg = arg, .count = count};
    pthread_mutex_lock(&pool->lock);
    struct job **last = &pool->jobs;
    while (*last)
        last = &(*last)->link;
    *last = &job;
    if (count > 1)
        pthread_cond_broadcast(&pool->work);
    take_part(pool, &job);
    while (job.busy)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
