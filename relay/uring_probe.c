/* uring_probe.c: whether io_uring works here: kernels, and what guards them, differ. */
#include "uring_loop.h"

#ifdef HR_HAVE_URING

#include <signal.h>
#include <unistd.h>

/* When a ring is closed, the kernel interrupts every thread that has touched it and still lives: a
 * blocking call there would fail with EINTR. So a ring is made in a thread that ends at once, used in
 * one that has ended when it is closed, and the caller's own is never disturbed. */
bool hr_uring_apart(void *(*what)(void *), void *argument)
{
    sigset_t all, before;
    pthread_t handle;
    void *result = NULL;
    bool made;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    made = pthread_create(&handle, NULL, what, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return made && pthread_join(handle, &result) == 0 && result != NULL;
}

/* ── Whether it works here ────────────────────────────────────────────────── */

/* A byte through a socket pair, as the loop would do it: kernels, and what guards them, differ. */
static bool relays_a_byte(hr_ring *ring, hr_ring_buffers *buffers, const int *fds)
{
    struct io_uring_sqe *sqe = hr_ring_sqe(ring);
    bool sent = false, came = false;

    sqe->opcode = IORING_OP_RECV;
    sqe->fd = fds[0];
    sqe->len = 1;
    sqe->flags = IOSQE_BUFFER_SELECT;
    sqe->ioprio = IORING_RECVSEND_POLL_FIRST;
    sqe->user_data = 1;
    sqe = hr_ring_sqe(ring);
    sqe->opcode = IORING_OP_SEND;
    sqe->fd = fds[1];
    sqe->addr = (uint64_t) (uintptr_t) "x";
    sqe->len = 1;
    sqe->msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    sqe->user_data = 2;
    for (int tries = 0; tries < 3 && !(sent && came); tries++) {
        hr_ring_wait(ring, 2, 100 * HR_MS);
        for (uint32_t left = hr_ring_ready(ring); left > 0; left--) {
            const struct io_uring_cqe *cqe = hr_ring_cqe(ring, 0);

            if (cqe->user_data == 1)
                came = cqe->res == 1 && (cqe->flags & IORING_CQE_F_BUFFER) != 0
                       && hr_ring_buffer(buffers, cqe->flags >> IORING_CQE_BUFFER_SHIFT)[0] == 'x';
            else
                sent = cqe->res == 1;
            hr_ring_seen(ring, 1);
        }
    }
    return sent && came;
}

static void *probe(void *argument)
{
    hr_ring_buffers buffers = {.group = 0, .count = 2, .bytes = 64};
    int fds[2] = {-1, -1};
    hr_ring ring;
    bool works;

    if (!hr_ring_open(&ring, 8))
        return NULL;
    works = hr_ring_buffers_open(&ring, &buffers) && hr_ring_enable(&ring)
            && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0
            && relays_a_byte(&ring, &buffers, fds);
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    hr_ring_close(&ring);
    hr_ring_buffers_close(&buffers);
    return works ? argument : NULL;
}

bool hr_uring_works(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int known = -1;
    bool works;

    pthread_mutex_lock(&lock);
    if (known < 0)
        known = hr_uring_apart(probe, &known);
    works = known == 1;
    pthread_mutex_unlock(&lock);
    return works;
}

#else

bool hr_uring_works(void)
{
    return false;
}

#endif
