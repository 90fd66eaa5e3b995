/*
 * events.c: what the threads tell Python.   thread ──hr_tell──► its ring ──hr_event_take──► Python
 *
 * Each thread has a ring of its own, written by it alone, so that telling never waits for another
 * thread or for Python. A full ring loses the event, and counts it. What a client does thousands of
 * times a second is rationed, by client and kind: counters are exact all the same, and the next
 * event says how many were left out.
 *
 * The eventfd is written once until Python has found all rings empty, not once per event.
 */
#include "inside.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define RING_BYTES (256u * 1024u)     /* of a thread; a power of two */
#define RATION_NS UINT64_C(100000000) /* one event per client and kind, in the long run … */
#define RATION_BURST 20u              /* … and so many at once */
#define RATIONED_KINDS 3u             /* BLOCKED, DELAYED, WARNED */
#define HEAD_BYTES offsetof(hr_event, text)

/* Bytes ever written and ever taken: the difference is what lies in it. On lines of their own, as
 * each is written by one side alone. */
typedef struct ring {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t taken;
    uint8_t *bytes;
} ring;

typedef struct ration {
    _Atomic uint64_t due_ns; /* as a bucket in time: now or earlier, it is empty */
    _Atomic uint32_t left_out;
} ration;

struct hr_events {
    int fd;
    _Atomic bool told;     /* the descriptor is readable, or is about to be */
    pthread_mutex_t taking; /* Python's threads among themselves */
    uint32_t rings;
    uint32_t next;         /* ring to look at first, so that none is forgotten */
    ring *ring;
    uint32_t clients;
    ration *rations;
};

/* ── Life ─────────────────────────────────────────────────────────────────── */

static bool make_rings(struct hr_events *events, uint32_t count)
{
    events->ring = aligned_alloc(64, count * sizeof *events->ring);
    if (events->ring == NULL)
        return false;
    memset(events->ring, 0, count * sizeof *events->ring);
    for (events->rings = 0; events->rings < count; events->rings++) {
        events->ring[events->rings].bytes = malloc(RING_BYTES);
        if (events->ring[events->rings].bytes == NULL)
            return false;
    }
    return true;
}

static void free_events(struct hr_events *events)
{
    for (uint32_t i = 0; i < events->rings; i++)
        free(events->ring[i].bytes);
    free(events->ring);
    free(events->rations);
    if (events->fd >= 0)
        close(events->fd);
    pthread_mutex_destroy(&events->taking);
    free(events);
}

bool hr_events_open(hr_relay *relay)
{
    struct hr_events *events = calloc(1, sizeof *events);

    if (events == NULL)
        return false;
    pthread_mutex_init(&events->taking, NULL);
    events->clients = relay->state == NULL ? 1 : relay->state->sizes.clients;
    events->rations = calloc((size_t) events->clients * RATIONED_KINDS, sizeof *events->rations);
    events->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (events->rations == NULL || events->fd < 0 || !make_rings(events, relay->settings.threads)) {
        free_events(events);
        return false;
    }
    relay->events = events;
    return true;
}

void hr_events_close(hr_relay *relay)
{
    if (relay->events != NULL)
        free_events(relay->events);
    relay->events = NULL;
}

int hr_event_fd(const hr_relay *relay)
{
    return relay->events == NULL ? -1 : relay->events->fd;
}

/* ── Telling ──────────────────────────────────────────────────────────────── */

static size_t text_bytes(const hr_event *event)
{
    size_t sum = (size_t) event->user_length + event->database_length + event->budget_length
                 + event->reason_length + event->text_length;

    return sum < sizeof event->text ? sum : sizeof event->text;
}

static ration *ration_of(struct hr_events *events, const hr_event *event)
{
    if (event->kind < HR_EVENT_BLOCKED || event->kind > HR_EVENT_WARNED)
        return NULL;
    return &events->rations[(size_t) (event->number % events->clients) * RATIONED_KINDS
                            + event->kind - HR_EVENT_BLOCKED];
}

/* Whether this client may be reported again. */
static bool take_ration(ration *of, uint64_t now_ns)
{
    uint64_t due = atomic_load_explicit(&of->due_ns, memory_order_relaxed);
    uint64_t next;

    do {
        next = (due > now_ns ? due : now_ns) + RATION_NS;
        if (next > now_ns + RATION_BURST * RATION_NS) {
            atomic_fetch_add_explicit(&of->left_out, 1, memory_order_relaxed);
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&of->due_ns, &due, next, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

static void put(ring *to, uint64_t at, const void *bytes, size_t length)
{
    size_t place = (size_t) (at & (RING_BYTES - 1));
    size_t first = length < RING_BYTES - place ? length : RING_BYTES - place;

    memcpy(to->bytes + place, bytes, first);
    memcpy(to->bytes, (const uint8_t *) bytes + first, length - first);
}

static bool push(ring *to, const hr_event *event, uint32_t left_out)
{
    size_t length = HEAD_BYTES + text_bytes(event);
    size_t room = (length + 7) / 8 * 8;
    uint64_t at = atomic_load_explicit(&to->written, memory_order_relaxed);

    if (at + room - atomic_load_explicit(&to->taken, memory_order_acquire) > RING_BYTES)
        return false;
    put(to, at, event, length);
    put(to, at + offsetof(hr_event, left_out), &left_out, sizeof left_out);
    atomic_store_explicit(&to->written, at + room, memory_order_release);
    return true;
}

/* The writer says so after it has written; the reader takes the word back before it looks a last
 * time: so one of the two sees the other. */
static void wake_reader(struct hr_events *events)
{
    const uint64_t one = 1;

    if (!atomic_exchange(&events->told, true))
        (void) !write(events->fd, &one, sizeof one);
}

void hr_tell(hr_thread *thread, const hr_event *event)
{
    struct hr_events *events = thread->relay->events;
    ration *of;
    uint32_t left_out = 0;

    if (events == NULL || thread->number >= events->rings)
        return;
    of = ration_of(events, event);
    if (of != NULL && !take_ration(of, thread->now_ns))
        return;
    if (of != NULL)
        left_out = atomic_exchange_explicit(&of->left_out, 0, memory_order_relaxed);
    if (push(&events->ring[thread->number], event, left_out)) {
        wake_reader(events);
        return;
    }
    hg_add(&thread->counts->lost_events, 1);
    if (of != NULL)
        atomic_fetch_add_explicit(&of->left_out, left_out + 1, memory_order_relaxed);
}

/* ── Taking ───────────────────────────────────────────────────────────────── */

static void get(const ring *from, uint64_t at, void *bytes, size_t length)
{
    size_t place = (size_t) (at & (RING_BYTES - 1));
    size_t first = length < RING_BYTES - place ? length : RING_BYTES - place;

    memcpy(bytes, from->bytes + place, first);
    memcpy((uint8_t *) bytes + first, from->bytes, length - first);
}

static bool pop(ring *from, hr_event *event)
{
    uint64_t at = atomic_load_explicit(&from->taken, memory_order_relaxed);
    size_t text;

    if (at == atomic_load_explicit(&from->written, memory_order_acquire))
        return false;
    get(from, at, event, HEAD_BYTES);
    text = text_bytes(event);
    get(from, at + HEAD_BYTES, event->text, text);
    atomic_store_explicit(&from->taken, at + (HEAD_BYTES + text + 7) / 8 * 8, memory_order_release);
    return true;
}

static bool pop_any(struct hr_events *events, hr_event *event)
{
    for (uint32_t i = 0; i < events->rings; i++) {
        uint32_t which = (events->next + i) % events->rings;

        if (pop(&events->ring[which], event)) {
            events->next = which + 1;
            return true;
        }
    }
    return false;
}

bool hr_event_take(hr_relay *relay, hr_event *event)
{
    struct hr_events *events = relay->events;
    uint64_t count;
    bool found;

    if (events == NULL)
        return false;
    pthread_mutex_lock(&events->taking);
    found = pop_any(events, event);
    if (!found) {
        (void) !read(events->fd, &count, sizeof count);
        (void) atomic_exchange(&events->told, false); /* sees all that its last giver wrote */
        found = pop_any(events, event);
        if (found) /* there may be more behind it, and its writer saw the word still given */
            wake_reader(events);
    }
    pthread_mutex_unlock(&events->taking);
    return found;
}
