/* The threads of the CPU device. Not OpenMP: its regions end when every thread of the team has come by, even one that
 * had no work because the system was running something else on its core. On a shared machine that made a decode step of
 * 0.07 s take seconds. Here the caller takes items as the workers do, and in the end waits only for workers that hold
 * one. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/file.h"
#include "kernels/cpu/cpu.h"

/* Looks at shared state before sleeping: about 50 microseconds, the time that waking a sleeper takes. */
enum { SPINS = 2000 };

struct cpu_pool {
    int n_workers;
    pthread_t *workers; /* [n_workers] */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    /* The job. All but the atomics change under the lock, and only while active is 0. */
    cpu_task task;
    void *ctx;
    int n, grain, wanted; /* items, items taken at a time, workers that may still join */
    int quit;
    atomic_int next;    /* first item not taken */
    atomic_int active;  /* workers inside the job; rises under the lock */
    atomic_uint number; /* of the job: changes when there is something to do */
};

typedef struct {
    cpu_pool *pool;
    int index;
} worker_arg;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_items(cpu_pool *p, int worker) {
    int begin;
    while ((begin = atomic_fetch_add_explicit(&p->next, p->grain, memory_order_relaxed)) < p->n)
        p->task(p->ctx, worker, begin, p->n - begin > p->grain ? begin + p->grain : p->n);
}

static void *work(void *user) {
    worker_arg arg = *(worker_arg *)user;
    cpu_pool *p = arg.pool;
    free(user);
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPINS && atomic_load_explicit(&p->number, memory_order_relaxed) == seen; i++) relax();
        pthread_mutex_lock(&p->lock);
        while (atomic_load_explicit(&p->number, memory_order_relaxed) == seen) pthread_cond_wait(&p->wake, &p->lock);
        seen = atomic_load_explicit(&p->number, memory_order_relaxed);
        int quit = p->quit, join = p->wanted > 0;
        if (join) p->wanted--, atomic_fetch_add_explicit(&p->active, 1, memory_order_relaxed);
        pthread_mutex_unlock(&p->lock);
        if (quit) return NULL;
        if (!join) continue;
        take_items(p, arg.index);
        /* What this worker wrote is seen by whoever sees active fall. */
        if (atomic_fetch_sub_explicit(&p->active, 1, memory_order_release) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

void cpu_parallel(cpu_pool *p, int threads, int n, int grain, cpu_task task, void *ctx) {
    if (n < 1) return;
    if (!p || threads < 2 || n <= grain) {
        task(ctx, 0, 0, n);
        return;
    }
    int64_t parts = ((int64_t)n + grain - 1) / grain;
    pthread_mutex_lock(&p->lock);
    p->task = task, p->ctx = ctx, p->n = n, p->grain = grain;
    p->wanted = threads - 1 < p->n_workers ? threads - 1 : p->n_workers;
    if (parts - 1 < p->wanted) p->wanted = (int)parts - 1;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->number, 1, memory_order_relaxed);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    take_items(p, 0);
    pthread_mutex_lock(&p->lock);
    p->wanted = 0; /* who comes later finds nothing to join */
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < SPINS && atomic_load_explicit(&p->active, memory_order_acquire); i++) relax();
    if (!atomic_load_explicit(&p->active, memory_order_acquire)) return;
    pthread_mutex_lock(&p->lock);
    while (atomic_load_explicit(&p->active, memory_order_acquire)) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

tv_status cpu_pool_open(int threads, cpu_pool **out, tv_err *err) {
    *out = NULL;
    if (threads < 2) return TV_OK;
    cpu_pool *p = tv_xcalloc(1, sizeof *p);
    p->workers = tv_xcalloc((size_t)threads - 1, sizeof *p->workers);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 0; i < threads - 1; i++) {
        worker_arg *arg = tv_xmalloc(sizeof *arg);
        *arg = (worker_arg){p, i + 1};
        if (pthread_create(&p->workers[i], NULL, work, arg)) {
            free(arg);
            cpu_pool_close(p);
            return TV_FAIL(err, TV_ENOMEM, "cpu: the system refused thread %d of %d; ask for fewer threads", i + 2,
                           threads);
        }
        p->n_workers++;
    }
    *out = p;
    return TV_OK;
}

void cpu_pool_close(cpu_pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->quit = 1;
    p->wanted = 0;
    atomic_fetch_add_explicit(&p->number, 1, memory_order_relaxed);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_workers; i++) pthread_join(p->workers[i], NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    free(p->workers);
    free(p);
}
