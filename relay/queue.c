/*
 * queue.c: those who wait, over all threads.
 *
 *   hr_queue_join ──► [ priority, then arrival ] ──► the first of all tries; the others wait for it
 *
 * One queue for each bucket with waiters, and one for the pace. The first one looks
 * again by time and when a statement ends; when it leaves, the next one is woken and is the first. So
 * room that comes free goes to the best, and nobody polls but one a queue.
 *
 * One lock for all of them. It is taken by those who wait, and by an ending statement or an arrival
 * only if the count of the bucket's place says that one may be waiting there.
 */
#include "gate_inside.h"

#include <stdlib.h>

#define PLACES 1024u /* a power of two */

typedef struct hr_queue {
    struct hr_queue *next; /* of the same place */
    uint64_t key;
    hr_waiter *first, *last;
} hr_queue;

struct hr_queues {
    pthread_mutex_t lock;
    _Atomic uint64_t numbers;
    _Atomic uint32_t waiting[PLACES]; /* in the queues of each place */
    hr_queue *queue[PLACES];
    hr_waiter *own[HR_MAX_THREADS];
};

hr_queues *hr_queues_open(void)
{
    hr_queues *queues = calloc(1, sizeof *queues);

    if (queues != NULL && pthread_mutex_init(&queues->lock, NULL) != 0) {
        free(queues);
        return NULL;
    }
    return queues;
}

void hr_queues_close(hr_queues *queues)
{
    if (queues == NULL)
        return;
    pthread_mutex_destroy(&queues->lock);
    free(queues);
}

uint64_t hr_queue_number(hr_queues *queues)
{
    return atomic_fetch_add_explicit(&queues->numbers, 1, memory_order_relaxed);
}

static uint32_t place_of(uint64_t key)
{
    return (uint32_t) (key * UINT64_C(0x9e3779b97f4a7c15) >> 54);
}

static hr_queue *find(hr_queues *queues, uint64_t key)
{
    hr_queue *queue = queues->queue[place_of(key)];

    while (queue != NULL && queue->key != key)
        queue = queue->next;
    return queue;
}

static bool comes_before(const hr_waiter *a, const hr_waiter *b)
{
    return a->priority < b->priority || (a->priority == b->priority && a->sequence < b->sequence);
}

bool hr_queue_ahead(hr_queues *queues, uint64_t key, const hr_waiter *self, uint8_t priority)
{
    const hr_queue *queue;
    bool ahead = false;

    /* Sequentially consistent, as in hr_queue_wake: see hr_queue_join. */
    if (atomic_load(&queues->waiting[place_of(key)]) == 0)
        return false;
    pthread_mutex_lock(&queues->lock);
    queue = find(queues, key);
    if (queue != NULL && queue->first != self)
        ahead = self != NULL && self->priority == priority ? comes_before(queue->first, self)
                                                           : queue->first->priority <= priority;
    pthread_mutex_unlock(&queues->lock);
    return ahead;
}

static hr_queue *queue_for(hr_queues *queues, uint64_t key)
{
    hr_queue *queue = find(queues, key);

    if (queue != NULL)
        return queue;
    queue = calloc(1, sizeof *queue);
    if (queue == NULL)
        return NULL;
    queue->key = key;
    queue->next = queues->queue[place_of(key)];
    queues->queue[place_of(key)] = queue;
    return queue;
}

static void insert(hr_queue *queue, hr_waiter *waiter)
{
    hr_waiter *after = queue->last;

    while (after != NULL && comes_before(waiter, after))
        after = after->previous;
    waiter->previous = after;
    waiter->next = after == NULL ? queue->first : after->next;
    *(waiter->next == NULL ? &queue->last : &waiter->next->previous) = waiter;
    *(after == NULL ? &queue->first : &after->next) = waiter;
    waiter->queue = queue;
}

static void wake(hr_waiter *waiter)
{
    if (!atomic_exchange(&waiter->woken, true))
        hr_wake(waiter->thread, waiter->session, waiter->id);
}

static void free_queue(hr_queues *queues, hr_queue *queue)
{
    hr_queue **link = &queues->queue[place_of(queue->key)];

    while (*link != queue)
        link = &(*link)->next;
    *link = queue->next;
    free(queue);
}

/* The first one now has to look. */
static void take_out(hr_queues *queues, hr_waiter *waiter)
{
    hr_queue *queue = waiter->queue;
    bool was_first = queue->first == waiter;

    *(waiter->next == NULL ? &queue->last : &waiter->next->previous) = waiter->previous;
    *(waiter->previous == NULL ? &queue->first : &waiter->previous->next) = waiter->next;
    waiter->next = waiter->previous = NULL;
    waiter->queue = NULL;
    atomic_fetch_sub(&queues->waiting[place_of(queue->key)], 1);
    if (queue->first == NULL)
        free_queue(queues, queue);
    else if (was_first)
        wake(queue->first);
}

/* The count goes up before the caller looks for room once more, and one that makes room looks at the
 * count after that: of the two, one sees the other. */
bool hr_queue_join(hr_queues *queues, uint64_t key, hr_waiter *waiter)
{
    hr_queue *queue;

    pthread_mutex_lock(&queues->lock);
    if (waiter->queue != NULL && waiter->queue->key == key) {
        pthread_mutex_unlock(&queues->lock);
        return true;
    }
    queue = queue_for(queues, key);
    if (queue != NULL) {
        if (waiter->queue != NULL)
            take_out(queues, waiter);
        insert(queue, waiter);
        atomic_fetch_add(&queues->waiting[place_of(key)], 1);
    }
    pthread_mutex_unlock(&queues->lock);
    return queue != NULL;
}

void hr_queue_leave(hr_queues *queues, hr_waiter *waiter)
{
    pthread_mutex_lock(&queues->lock);
    if (waiter->queue != NULL)
        take_out(queues, waiter);
    pthread_mutex_unlock(&queues->lock);
}

void hr_queue_wake(hr_queues *queues, uint64_t key)
{
    hr_queue *queue;

    if (atomic_load(&queues->waiting[place_of(key)]) == 0)
        return;
    pthread_mutex_lock(&queues->lock);
    queue = find(queues, key);
    if (queue != NULL)
        wake(queue->first);
    pthread_mutex_unlock(&queues->lock);
}

/* ── Of a thread ──────────────────────────────────────────────────────────── */

void hr_queue_own(hr_queues *queues, hr_waiter *waiter)
{
    hr_waiter **first = &queues->own[waiter->thread->number];

    pthread_mutex_lock(&queues->lock);
    waiter->next_own = *first;
    waiter->previous_own = NULL;
    if (*first != NULL)
        (*first)->previous_own = waiter;
    *first = waiter;
    pthread_mutex_unlock(&queues->lock);
}

/* And out of its queue. After that nobody else knows of it. */
void hr_queue_disown(hr_queues *queues, hr_waiter *waiter)
{
    pthread_mutex_lock(&queues->lock);
    if (waiter->queue != NULL)
        take_out(queues, waiter);
    if (waiter->next_own != NULL)
        waiter->next_own->previous_own = waiter->previous_own;
    *(waiter->previous_own == NULL ? &queues->own[waiter->thread->number]
                                   : &waiter->previous_own->next_own) = waiter->next_own;
    pthread_mutex_unlock(&queues->lock);
}

void hr_queue_stir(hr_queues *queues, const hr_thread *thread)
{
    pthread_mutex_lock(&queues->lock);
    for (hr_waiter *at = queues->own[thread->number]; at != NULL; at = at->next_own)
        wake(at);
    pthread_mutex_unlock(&queues->lock);
}
