/* uring.c: io_uring's system calls and shared queues. See uring.h. */
#include "uring.h"

#ifdef HR_HAVE_URING

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int sys_setup(uint32_t entries, struct io_uring_params *parameters)
{
    return (int) syscall(SYS_io_uring_setup, entries, parameters);
}

static int sys_enter(int fd, uint32_t submit, uint32_t least, uint32_t flags, const void *argument,
                     size_t length)
{
    return (int) syscall(SYS_io_uring_enter, fd, submit, least, flags, argument, length);
}

static int sys_register(int fd, uint32_t what, void *argument, uint32_t count)
{
    return (int) syscall(SYS_io_uring_register, fd, what, argument, count);
}

const hr_ring hr_no_ring = {.fd = -1, .queues = MAP_FAILED, .sqes = MAP_FAILED};

/* ── The ring ─────────────────────────────────────────────────────────────── */

static bool map_queues(hr_ring *ring, const struct io_uring_params *parameters)
{
    size_t sq_bytes = parameters->sq_off.array + parameters->sq_entries * sizeof(uint32_t);
    size_t cq_bytes = parameters->cq_off.cqes
                      + parameters->cq_entries * sizeof(struct io_uring_cqe);
    uint8_t *base;
    uint32_t *order;

    ring->queues_bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    ring->sqes_bytes = parameters->sq_entries * sizeof(struct io_uring_sqe);
    ring->queues = mmap(NULL, ring->queues_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                        ring->fd, IORING_OFF_SQ_RING);
    ring->sqes = mmap(NULL, ring->sqes_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                      ring->fd, (off_t) IORING_OFF_SQES);
    if (ring->queues == MAP_FAILED || (void *) ring->sqes == MAP_FAILED)
        return false;
    base = ring->queues;
    ring->sq_head = (_Atomic uint32_t *) (void *) (base + parameters->sq_off.head);
    ring->sq_tail = (_Atomic uint32_t *) (void *) (base + parameters->sq_off.tail);
    ring->sq_mask = *(uint32_t *) (void *) (base + parameters->sq_off.ring_mask);
    ring->sq_entries = parameters->sq_entries;
    ring->cq_head = (_Atomic uint32_t *) (void *) (base + parameters->cq_off.head);
    ring->cq_tail = (_Atomic uint32_t *) (void *) (base + parameters->cq_off.tail);
    ring->cq_mask = *(uint32_t *) (void *) (base + parameters->cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *) (void *) (base + parameters->cq_off.cqes);
    order = (uint32_t *) (void *) (base + parameters->sq_off.array);
    for (uint32_t i = 0; i < parameters->sq_entries; i++)
        order[i] = i;
    return true;
}

bool hr_ring_open(hr_ring *ring, uint32_t entries)
{
    /* DEFER_TASKRUN: completions are worked out when this thread waits for them, not whenever the
     * kernel likes: fewer interruptions, better batches. It wants one thread that submits, and that
     * one is known only once it runs: so the ring begins disabled. */
    struct io_uring_params parameters = {
        .flags = IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER
                 | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_R_DISABLED
                 | IORING_SETUP_SUBMIT_ALL,
        .cq_entries = entries * 8,
    };
    const uint32_t needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG
                            | IORING_FEAT_FAST_POLL;

    *ring = hr_no_ring;
    ring->fd = sys_setup(entries, &parameters);
    if (ring->fd < 0)
        return false;
    if ((parameters.features & needed) == needed && map_queues(ring, &parameters))
        return true;
    hr_ring_close(ring);
    return false;
}

bool hr_ring_enable(hr_ring *ring)
{
    if (!ring->enabled)
        ring->enabled = sys_register(ring->fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) == 0;
    return ring->enabled;
}

void hr_ring_close(hr_ring *ring)
{
    if ((void *) ring->sqes != MAP_FAILED)
        munmap(ring->sqes, ring->sqes_bytes);
    if (ring->queues != MAP_FAILED)
        munmap(ring->queues, ring->queues_bytes);
    if (ring->fd >= 0)
        close(ring->fd);
    *ring = hr_no_ring;
}

/* ── Submitting and waiting ───────────────────────────────────────────────── */

uint32_t hr_ring_queued(const hr_ring *ring)
{
    return ring->tail - atomic_load_explicit(ring->sq_head, memory_order_acquire);
}

bool hr_ring_submit(hr_ring *ring)
{
    uint32_t count = hr_ring_queued(ring);

    if (count == 0)
        return true;
    atomic_store_explicit(ring->sq_tail, ring->tail, memory_order_release);
    return sys_enter(ring->fd, count, 0, 0, NULL, 0) > 0;
}

struct io_uring_sqe *hr_ring_sqe(hr_ring *ring)
{
    struct io_uring_sqe *sqe;

    /* It takes them all, or is short of memory: then completions have to be worked out first. */
    while (hr_ring_queued(ring) >= ring->sq_entries)
        if (!hr_ring_submit(ring))
            sys_enter(ring->fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
    sqe = &ring->sqes[ring->tail++ & ring->sq_mask];
    memset(sqe, 0, sizeof *sqe);
    return sqe;
}

void hr_ring_wait(hr_ring *ring, uint32_t least, uint64_t left_ns)
{
    struct __kernel_timespec left = {.tv_sec = (int64_t) (left_ns / 1000000000u),
                                     .tv_nsec = (int64_t) (left_ns % 1000000000u)};
    struct io_uring_getevents_arg argument = {
        .sigmask_sz = _NSIG / 8, .ts = left_ns == UINT64_MAX ? 0 : (uint64_t) (uintptr_t) &left};

    atomic_store_explicit(ring->sq_tail, ring->tail, memory_order_release);
    sys_enter(ring->fd, hr_ring_queued(ring), least, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
              &argument, sizeof argument);
}

uint32_t hr_ring_ready(const hr_ring *ring)
{
    return atomic_load_explicit(ring->cq_tail, memory_order_acquire)
           - atomic_load_explicit(ring->cq_head, memory_order_relaxed);
}

void hr_ring_seen(hr_ring *ring, uint32_t count)
{
    uint32_t head = atomic_load_explicit(ring->cq_head, memory_order_relaxed);

    atomic_store_explicit(ring->cq_head, head + count, memory_order_release);
}

/* ── Buffers ──────────────────────────────────────────────────────────────── */

static void *map_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

/* The list's tail lies where the first entry has its spare field. */
static void show_tail(hr_ring_buffers *buffers)
{
    _Atomic uint16_t *tail = (_Atomic uint16_t *) (void *) &buffers->list[0].resv;

    atomic_store_explicit(tail, buffers->tail, memory_order_release);
}

static void give(hr_ring_buffers *buffers, uint32_t number)
{
    struct io_uring_buf *entry = &buffers->list[buffers->tail++ & (buffers->count - 1)];

    entry->addr = (uint64_t) (uintptr_t) hr_ring_buffer(buffers, number);
    entry->len = buffers->bytes;
    entry->bid = (uint16_t) number;
}

bool hr_ring_buffers_open(hr_ring *ring, hr_ring_buffers *buffers)
{
    struct io_uring_buf_reg about = {.ring_entries = buffers->count, .bgid = buffers->group};

    buffers->mapped_bytes = (size_t) buffers->count * (buffers->bytes + buffers->headroom);
    buffers->list_bytes = buffers->count * sizeof *buffers->list;
    buffers->memory = map_memory(buffers->mapped_bytes);
    buffers->list = map_memory(buffers->list_bytes);
    buffers->users = calloc(buffers->count, 1);
    if (buffers->memory == NULL || buffers->list == NULL || buffers->users == NULL)
        return false;
    about.ring_addr = (uint64_t) (uintptr_t) buffers->list;
    if (sys_register(ring->fd, IORING_REGISTER_PBUF_RING, &about, 1) != 0)
        return false;
    for (uint32_t i = 0; i < buffers->count; i++)
        give(buffers, i);
    show_tail(buffers);
    return true;
}

void hr_ring_buffers_close(hr_ring_buffers *buffers)
{
    if (buffers->memory != NULL)
        munmap(buffers->memory, buffers->mapped_bytes);
    if (buffers->list != NULL)
        munmap(buffers->list, buffers->list_bytes);
    free(buffers->users);
    buffers->memory = NULL;
    buffers->list = NULL;
    buffers->users = NULL;
}

void hr_ring_buffer_drop(hr_ring_buffers *buffers, uint32_t number)
{
    if (--buffers->users[number] > 0)
        return;
    give(buffers, number);
    show_tail(buffers);
}

#else

typedef int hr_no_uring; /* a file must hold something */

#endif
