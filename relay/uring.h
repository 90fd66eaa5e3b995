/*
 * uring.h: io_uring without a library: one ring, its queues, and the buffers that it reads into.
 *
 * Only where the kernel's headers know all that is needed (Linux 6.1); elsewhere HR_HAVE_URING is not
 * defined, and the relay has epoll alone. Whether the running kernel does is tried at run time.
 */
#ifndef HEADGATE_RELAY_URING_H
#define HEADGATE_RELAY_URING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__linux__) && defined(__has_include)
#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif
#endif

#if defined(IORING_SETUP_DEFER_TASKRUN) && defined(IORING_RECVSEND_POLL_FIRST)                     \
    && defined(IORING_ASYNC_CANCEL_FD) && defined(IORING_ENTER_EXT_ARG)
#define HR_HAVE_URING 1

typedef struct hr_ring {
    int fd;
    bool enabled;                /* by the thread that submits */
    void *queues;                /* both, in one mapping */
    size_t queues_bytes, sqes_bytes;
    struct io_uring_sqe *sqes;
    _Atomic uint32_t *sq_head, *sq_tail;
    uint32_t sq_mask, sq_entries;
    uint32_t tail;               /* ours, behind what the kernel was shown */
    _Atomic uint32_t *cq_head, *cq_tail;
    uint32_t cq_mask;
    struct io_uring_cqe *cqes;
} hr_ring;

extern const hr_ring hr_no_ring; /* not open, and may be closed */
/* Made by one thread, used by another, that enables it with its first round. */
bool hr_ring_open(hr_ring *ring, uint32_t entries);
bool hr_ring_enable(hr_ring *ring);
void hr_ring_close(hr_ring *ring);
/* Room for one more, all zero. Submits what is there if there was none. */
struct io_uring_sqe *hr_ring_sqe(hr_ring *ring);
/* Not given to the kernel yet. */
uint32_t hr_ring_queued(const hr_ring *ring);
/* Gives the kernel what is queued. False: it took nothing, and says why in errno. */
bool hr_ring_submit(hr_ring *ring);
/* The same, and waits for `least` completions, for `left_ns` at most (UINT64_MAX: forever). */
void hr_ring_wait(hr_ring *ring, uint32_t least, uint64_t left_ns);
/* Completions that are there. */
uint32_t hr_ring_ready(const hr_ring *ring);
/* The n-th of them; all are given back by hr_ring_seen. */
static inline const struct io_uring_cqe *hr_ring_cqe(const hr_ring *ring, uint32_t n)
{
    return &ring->cqes[(atomic_load_explicit(ring->cq_head, memory_order_relaxed) + n)
                       & ring->cq_mask];
}
void hr_ring_seen(hr_ring *ring, uint32_t count);

/* Buffers that the kernel chooses from when bytes have come: so those who wait have none. Each has
 * `headroom` bytes in front of it. */
typedef struct hr_ring_buffers {
    uint16_t group;
    uint16_t tail;
    uint32_t count, bytes, headroom; /* count: a power of two */
    size_t mapped_bytes, list_bytes;
    uint8_t *memory;
    struct io_uring_buf *list;
    uint8_t *users;                  /* of each: who reads it, and sends that are under way */
} hr_ring_buffers;

bool hr_ring_buffers_open(hr_ring *ring, hr_ring_buffers *buffers);
void hr_ring_buffers_close(hr_ring_buffers *buffers);
static inline uint8_t *hr_ring_buffer(const hr_ring_buffers *buffers, uint32_t number)
{
    return buffers->memory + (size_t) number * (buffers->bytes + buffers->headroom)
           + buffers->headroom;
}
/* One user less; the last one gives it back to the kernel. */
void hr_ring_buffer_drop(hr_ring_buffers *buffers, uint32_t number);

#endif
#endif
