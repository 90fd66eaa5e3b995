/*
 * pool.c: buffers, for what cannot be consumed or sent at once.
 *
 * Four sizes; each thread keeps a few that are free, so that steady load does not allocate. One
 * bound over all threads: who would go beyond it does not get one, and its session ends. Long before,
 * those who wait for a slow end may keep less and less (hr_unsent_most), so that clients that do not
 * read leave something to those that do.
 */
#include "engine.h"

#include <stdlib.h>

static const uint32_t size_of_pool[HR_POOLS] = {2048u - 32u, 16384u - 32u, HR_BUFFER_BYTES,
                                                HR_TEXT_BUFFER_BYTES};
static const uint32_t spares_of_pool[HR_POOLS] = {256u, 64u, 16u, 1u};

static int pool_of(size_t least)
{
    int pool = 0;

    while (pool < HR_POOLS - 1 && least > size_of_pool[pool])
        pool++;
    return pool;
}

static bool may_have(hr_thread *thread, uint64_t bytes)
{
    hr_engine_shared *shared = hr_shared(thread);
    uint64_t used = atomic_fetch_add_explicit(&shared->buffer_bytes, bytes, memory_order_relaxed);

    if (used + bytes <= thread->relay->settings.max_buffer_bytes)
        return true;
    atomic_fetch_sub_explicit(&shared->buffer_bytes, bytes, memory_order_relaxed);
    return false;
}

static hr_buffer *from_pool(hr_engine *engine, int pool)
{
    hr_buffer *buffer = engine->pool[pool];

    if (buffer != NULL) {
        engine->pool[pool] = buffer->next;
        engine->pooled[pool]--;
        return buffer;
    }
    buffer = malloc(sizeof *buffer + size_of_pool[pool]);
    if (buffer != NULL)
        buffer->size = size_of_pool[pool];
    return buffer;
}

hr_buffer *hr_buffer_get(hr_thread *thread, size_t least)
{
    int pool = pool_of(least);
    hr_buffer *buffer = NULL;

    if (least > size_of_pool[pool])
        return NULL;
    if (may_have(thread, size_of_pool[pool])) {
        buffer = from_pool(thread->engine, pool);
        if (buffer == NULL)
            atomic_fetch_sub_explicit(&hr_shared(thread)->buffer_bytes, size_of_pool[pool],
                                      memory_order_relaxed);
    }
    if (buffer == NULL) {
        hg_add_own(&thread->counts->out_of_buffers, 1);
        return NULL;
    }
    hg_add_own(&thread->counts->buffers_used_bytes, buffer->size);
    buffer->next = NULL;
    buffer->start = buffer->end = 0;
    return buffer;
}

void hr_buffer_put(hr_thread *thread, hr_buffer *buffer)
{
    hr_engine *engine = thread->engine;
    int pool;

    if (buffer == NULL)
        return;
    pool = pool_of(buffer->size);
    atomic_fetch_sub_explicit(&hr_shared(thread)->buffer_bytes, buffer->size, memory_order_relaxed);
    hg_add_own(&thread->counts->buffers_used_bytes, 0 - (uint64_t) buffer->size);
    if (engine->pooled[pool] >= spares_of_pool[pool]) {
        free(buffer);
        return;
    }
    buffer->next = engine->pool[pool];
    engine->pool[pool] = buffer;
    engine->pooled[pool]++;
}

/* ── Texts ────────────────────────────────────────────────────────────────── */

bool hr_memory_take(hr_thread *thread, size_t bytes)
{
    hr_engine_shared *shared = hr_shared(thread);
    uint64_t used = atomic_fetch_add_explicit(&shared->buffer_bytes, bytes, memory_order_relaxed);

    if (used + bytes > thread->relay->settings.max_buffer_bytes / 2) {
        atomic_fetch_sub_explicit(&shared->buffer_bytes, bytes, memory_order_relaxed);
        return false;
    }
    hg_add_own(&thread->counts->buffers_used_bytes, bytes);
    return true;
}

void hr_memory_give(hr_thread *thread, size_t bytes)
{
    atomic_fetch_sub_explicit(&hr_shared(thread)->buffer_bytes, bytes, memory_order_relaxed);
    hg_add_own(&thread->counts->buffers_used_bytes, 0 - (uint64_t) bytes);
}

/* ── As they get fewer ────────────────────────────────────────────────────── */

static uint64_t used_bytes(const hr_thread *thread)
{
    return atomic_load_explicit(&hr_shared(thread)->buffer_bytes, memory_order_relaxed);
}

size_t hr_unsent_most(const hr_thread *thread)
{
    uint64_t all = thread->relay->settings.max_buffer_bytes, used = used_bytes(thread);

    if (used <= all / 2)
        return HR_MAX_UNSENT;
    return used <= all / 4 * 3 ? HR_MAX_UNSENT / 4 : 0;
}

/* Whole buffers, as what is a little more than one takes the next size. One of the middle size is
 * always allowed: a client that reads takes it at once, and needs none. */
size_t hr_room_most(const hr_thread *thread)
{
    uint64_t all = thread->relay->settings.max_buffer_bytes, used = used_bytes(thread);
    uint64_t share = used < all ? (all - used) / 32 : 0;

    if (share >= HR_ROOM_BYTES)
        return HR_ROOM_BYTES;
    return share >= HR_BUFFER_BYTES ? HR_BUFFER_BYTES : size_of_pool[1];
}

size_t hr_text_most(const hr_thread *thread)
{
    uint64_t all = thread->relay->settings.max_buffer_bytes;

    return used_bytes(thread) + HR_TEXT_BUFFER_BYTES <= all / 2 ? HR_TEXT_BYTES : HR_WINDOW_BYTES;
}

bool hr_buffers_scarce(const hr_thread *thread)
{
    uint64_t all = thread->relay->settings.max_buffer_bytes;

    return used_bytes(thread) > all - all / 16;
}
