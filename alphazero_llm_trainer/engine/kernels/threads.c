/* A pool of threads that wait for loops.
 *
 * A loop's parts are claimed one by one, and the caller claims too. So a thread that the system runs late costs nothing:
 * the others have done its share by then.
 */

#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>

#include "products.h"

#define MOST 64    /* threads */
#define SPINS 1000 /* looks at an idle pool before a worker sleeps: some tens of microseconds, longer than between loops */
#define CLOSED UINT32_MAX /* in place of a next part: the loop has ended, and another one is being written down */

/* `ticket` is a loop's number (upper half) and its next part. A worker reads the loop between two looks at the ticket, of
 * which the second one claims the part: where the loop has ended meanwhile, the claim fails and what was read isn't used. */
static struct {
    pthread_mutex_t owner, lock; /* held by the caller that has the threads; guards `wake` */
    pthread_cond_t wake;
    int workers;
    atomic_int sleeping;
    _Atomic uint64_t ticket;
    atomic_long done; /* parts */
    /* the loop */
    atomic_int threads;
    atomic_long items, grain;
    _Atomic(part *) work;
    _Atomic(void *) loop;
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static uint32_t current_loop(void) { return (uint32_t)(pool.ticket >> 32); }

static inline void rest(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Claim and do parts of the loop with this number until none is left. */
static void work_on(uint32_t number, int thread)
{
    uint64_t ticket = pool.ticket;
    while (ticket >> 32 == number && (uint32_t)ticket != CLOSED) {
        const long items = pool.items, grain = pool.grain, from = (long)(uint32_t)ticket * grain;
        part *const work = pool.work;
        void *const loop = pool.loop;
        if (thread >= pool.threads || from >= items) return;
        if (!atomic_compare_exchange_strong(&pool.ticket, &ticket, ticket + 1)) continue;
        work(loop, thread, from, from + grain < items ? from + grain : items);
        pool.done++;
        ticket = pool.ticket;
    }
}

static void *worker(void *number)
{
    tiles_on();
    for (uint32_t seen = 0;;) {
        for (int i = 0; i < SPINS && current_loop() == seen; i++) rest();
        if (current_loop() == seen) {
            pthread_mutex_lock(&pool.lock);
            pool.sleeping++;
            while (current_loop() == seen) pthread_cond_wait(&pool.wake, &pool.lock);
            pool.sleeping--;
            pthread_mutex_unlock(&pool.lock);
        }
        seen = current_loop();
        work_on(seen, (int)(intptr_t)number);
    }
    return NULL;
}

/* A fork's child has none of the threads, and whoever held the locks isn't there to let them go. */
static void forked(void)
{
    pthread_mutex_init(&pool.owner, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pool.workers = pool.sleeping = 0;
    pool.ticket = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, forked); }

static int start_worker(int thread)
{
    pthread_t made;
    sigset_t all, before; /* signals are for threads that know what to do with them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&made, NULL, worker, (void *)(intptr_t)thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_detach(made);
    return !failed;
}

int take_threads(int wanted)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (wanted < 2 || pthread_mutex_trylock(&pool.owner)) return 1;
    pthread_once(&once, watch_forks);
    wanted = wanted < MOST ? wanted : MOST;
    while (pool.workers < wanted - 1 && start_worker(pool.workers + 1)) pool.workers++;
    if (pool.workers) return wanted <= pool.workers ? wanted : pool.workers + 1;
    pthread_mutex_unlock(&pool.owner);
    return 1;
}

void give_threads(int threads)
{
    if (threads > 1) pthread_mutex_unlock(&pool.owner);
}

void split(int threads, long items, long grain, part *work, void *loop)
{
    if (items <= 0) return;
    if (threads < 2 || items <= grain) {
        work(loop, 0, 0, items);
        return;
    }
    uint32_t number = current_loop();
    pool.ticket = (uint64_t)number << 32 | CLOSED;
    pool.done = 0;
    pool.threads = threads;
    pool.items = items;
    pool.grain = grain;
    pool.work = work;
    pool.loop = loop;
    number = number == UINT32_MAX ? 1 : number + 1; /* 0 is what a new worker has seen */
    pool.ticket = (uint64_t)number << 32;
    if (pool.sleeping) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    work_on(number, 0);
    /* On a busy machine the thread that has the last part may be waiting for this very core. */
    const long parts = (items + grain - 1) / grain;
    for (int i = 0; pool.done < parts; i++) {
        if (i < SPINS) rest();
        else i = SPINS, sched_yield();
    }
}
