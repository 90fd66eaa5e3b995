/*
 * harness.h: sessions without sockets, for the tests and fuzzers of the machines and of the gate.
 *
 *   bytes ──feed (cut anywhere)──► machine ──hr_emit──► talk->to[HR_CLIENT], talk->to[HR_SERVER]
 *                                     │ hr_ask
 *                                     ▼
 *             the real gate over a real region and state; or, with
 *             #define HARNESS_FAKE_GATE, harness_says, which the test writes
 *             (#define HARNESS_OWN_INBOX: the test brings hr_post, and threads)
 *
 * It stands in for the engine, and is stricter: what is fed lies in a block of just that size, what
 * is emitted is looked at only after the machine has returned, scratch goes then too, nothing may go
 * to a server that is not connected, and a ticket that is not given back fails the test.
 *
 *   world *w = world_open(HR_PROTOCOL_POSTGRES);
 *   talk *t = talk_open(w);
 *   feed(t, HR_CLIENT, startup, sizeof startup);          whole
 *   feed_cut(t, HR_SERVER, bytes, length, 1);             byte by byte
 *   assert(sent_is(t, HR_SERVER, expected, length));      compares, and empties
 *   talk_close(t); world_close(w);
 */
#ifndef HEADGATE_TESTS_HARNESS_H
#define HEADGATE_TESTS_HARNESS_H

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "documents.h"
#include "fuzz.h"
#include "inside.h"

#define HARNESS_UNUSED __attribute__((unused))
#define HARNESS_SECOND UINT64_C(1000000000)
#define HARNESS_MS UINT64_C(1000000)
#define HARNESS_WALL_MS INT64_C(1700000000000)
#define HARNESS_THREADS 4u
#define HARNESS_SLICES 65536u

const char *__asan_default_options(void);
/* What was emitted is read after the machine has returned: its stack must not be in it. */
HARNESS_UNUSED const char *__asan_default_options(void)
{
    return "detect_stack_use_after_return=1";
}

typedef struct some_bytes {
    uint8_t *bytes;
    size_t length, room;
} some_bytes;

typedef struct slice {
    const uint8_t *bytes;
    size_t length;
    hr_end to;
} slice;

typedef struct world {
    hr_relay relay;
    hr_thread thread[HARNESS_THREADS];
    hr_thread_counts counts[HARNESS_THREADS];
    hr_errand *errands;
    uint64_t next_id;
    uint32_t talks;
    _Atomic uint64_t memory_bytes; /* taken, and not given back */
    bool out_of_memory;            /* set it, and no more is to be had */
} world;

typedef struct talk {
    hr_session session; /* first: the machine knows this one alone */
    world *world;
    some_bytes to[2];   /* what went to each end, and was not compared yet */
    some_bytes kept[2]; /* came from each end, and was not consumed yet */
    hr_next next;       /* what the machine said last of the client */
    bool connected, closed, lost;
    bool stays_unconnected;  /* set it, and HR_CONNECT waits for connect_now */
    bool crowded;            /* set it, and its user has as many sessions as it may */
    bool stays_insecure;     /* set it, and HR_*_TLS wait for secure_now */
    bool tls_direct;         /* the client began TLS directly */
    int shaking;             /* end + 1 that is to be secured */
    uint64_t woken, timer_ns;
    slice *slices;
    size_t slice_count;
    void *scratch[256];
    size_t scratch_count;
    bool in_machine;
    /* With HARNESS_FAKE_GATE: what the machine told it. */
    char username[128], database[128], application[128];
    some_bytes told;         /* "attribute name=value\n", "variable name=value\n" */
    some_bytes asked; /* "<flags, hex> text\n" of every hr_ask, "<flags> P text\n" if prepared */
    bool begun; /* HR_ASK_BEGUN of the last one, which is not among these flags */
    some_bytes ended; /* "step 3 ok\n", "done 3 failed\n" */
    uint32_t tickets, tickets_open, prepared_open;
    bool ticket_open[1024];
} talk;

HARNESS_UNUSED static inline talk *talk_of(hr_session *session)
{
    return (talk *) session;
}

static inline void append(some_bytes *to, const void *bytes, size_t length)
{
    if (to->length + length > to->room) {
        to->room = (to->length + length) * 2 + 64;
        to->bytes = realloc(to->bytes, to->room);
        assert(to->bytes != NULL);
    }
    if (length > 0)
        memcpy(to->bytes + to->length, bytes, length);
    to->length += length;
}

HARNESS_UNUSED static inline void append_text(some_bytes *to, const char *text)
{
    append(to, text, strlen(text));
}

HARNESS_UNUSED static inline void take_front(some_bytes *from, size_t length)
{
    assert(length <= from->length);
    if (length > 0)
        memmove(from->bytes, from->bytes + length, from->length - length);
    from->length -= length;
}

/* ── What the engine is to a machine ──────────────────────────────────────── */

void hr_emit(hr_session *session, hr_end to, const void *bytes, size_t length)
{
    talk *t = talk_of(session);

    assert(t->in_machine);
    assert(to == HR_CLIENT || t->connected);
    if (length == 0)
        return;
    assert(bytes != NULL && t->slice_count < HARNESS_SLICES);
    t->slices[t->slice_count++] = (slice) {bytes, length, to};
}

void *hr_scratch(hr_session *session, size_t length)
{
    talk *t = talk_of(session);
    void *block = malloc(length == 0 ? 1 : length);

    assert(t->in_machine && length <= 8192 && block != NULL);
    assert(t->scratch_count < sizeof t->scratch / sizeof *t->scratch);
    memset(block, 0xa5, length);
    t->scratch[t->scratch_count++] = block;
    return block;
}

void hr_timer(hr_session *session, uint64_t due_ns)
{
    talk *t = talk_of(session);

    if (t->timer_ns == 0 || (due_ns != 0 && due_ns < t->timer_ns))
        t->timer_ns = due_ns;
}

void hr_wake(hr_thread *owner, hr_session *session, uint64_t id)
{
    assert(owner == session->thread && id == session->id);
    talk_of(session)->woken++;
}

#ifndef HARNESS_OWN_INBOX
/* Errands run when the test says so: run_errands. */
bool hr_post(hr_thread *owner, hr_errand *errand)
{
    world *w = (world *) owner->relay;

    errand->next = w->errands;
    w->errands = errand;
    return true;
}
#endif

/* Less, where buffers are scarce. */
static size_t text_most = HR_TEXT_BYTES;

size_t hr_text_most(const hr_thread *thread)
{
    (void) thread;
    return text_most;
}

hr_buffer *hr_buffer_get(hr_thread *thread, size_t least)
{
    size_t size = least <= 2048 ? 2048 : least <= 16384 ? 16384 : HR_BUFFER_BYTES;
    hr_buffer *buffer = calloc(1, sizeof *buffer + size);

    (void) thread;
    assert(least <= HR_BUFFER_BYTES && buffer != NULL);
    buffer->size = (uint32_t) size;
    return buffer;
}

void hr_buffer_put(hr_thread *thread, hr_buffer *buffer)
{
    (void) thread;
    free(buffer);
}

bool hr_memory_take(hr_thread *thread, size_t bytes)
{
    world *w = (world *) thread->relay;

    if (w->out_of_memory)
        return false;
    w->memory_bytes += bytes;
    return true;
}

void hr_memory_give(hr_thread *thread, size_t bytes)
{
    world *w = (world *) thread->relay;

    assert(w->memory_bytes >= bytes);
    w->memory_bytes -= bytes;
}

/* What it emitted goes out now, and not before: so its slices must have lived until here. */
static inline void flush_emitted(talk *t)
{
    t->in_machine = false;
    for (size_t i = 0; i < t->slice_count; i++)
        append(&t->to[t->slices[i].to], t->slices[i].bytes, t->slices[i].length);
    t->slice_count = 0;
    while (t->scratch_count > 0)
        free(t->scratch[--t->scratch_count]);
}

bool hr_user_proved(hr_session *session)
{
    assert(talk_of(session)->in_machine);
    return !talk_of(session)->crowded;
}

static void obey(talk *t, hr_end from, hr_next next);

void hr_session_end(hr_session *session, hr_lost why)
{
    talk *t = talk_of(session);
    bool inside = t->in_machine;

    if (t->lost)
        return;
    t->lost = t->closed = true;
    t->in_machine = true;
    session->machine->lost(session, why);
    if (!inside)
        flush_emitted(t);
}

/* ── Feeding ──────────────────────────────────────────────────────────────── */

/* Feeds what is kept from one end, once. */
static inline void feed_kept(talk *t, hr_end from)
{
    size_t length = t->kept[from].length;
    uint8_t *exact = malloc(length == 0 ? 1 : length);
    hr_next next = HR_MORE;
    size_t consumed;

    assert(exact != NULL);
    if (length > 0)
        memcpy(exact, t->kept[from].bytes, length);
    t->in_machine = true;
    consumed = t->session.machine->feed(&t->session, from, exact, length, &next);
    assert(consumed <= length);
    flush_emitted(t);
    free(exact);
    take_front(&t->kept[from], consumed);
    /* A machine streams: it never needs more than the largest buffer to go on. */
    if (next == HR_MORE && from == HR_CLIENT)
        assert(t->kept[from].length <= text_most + 1024);
    if (next == HR_MORE && from == HR_SERVER)
        assert(t->kept[from].length <= HR_BUFFER_BYTES);
    obey(t, from, next);
}

HARNESS_UNUSED static inline void connect_now(talk *t)
{
    hr_next next;

    assert(!t->connected);
    t->connected = true;
    t->session.side[HR_SERVER].fd = 1001;
    t->in_machine = true;
    next = t->session.machine->connected(&t->session);
    flush_emitted(t);
    obey(t, HR_SERVER, next);
    if (!t->closed && next == HR_MORE && t->kept[HR_CLIENT].length > 0)
        feed_kept(t, HR_CLIENT);
}

HARNESS_UNUSED static inline void secure_now(talk *t)
{
    hr_end end = (hr_end) (t->shaking - 1);
    hr_next next;

    assert(t->shaking != 0);
    t->shaking = 0;
    t->session.side[end].tls = (hr_tls_end *) t; /* just not NULL */
    t->in_machine = true;
    next = t->session.machine->secured(&t->session, end);
    flush_emitted(t);
    obey(t, end, next);
    if (!t->closed && t->shaking == 0 && t->kept[HR_CLIENT].length > 0)
        feed_kept(t, HR_CLIENT);
}

static inline void shake(talk *t, hr_end end)
{
    assert(t->shaking == 0 && t->session.side[end].tls == NULL);
    assert(end == HR_CLIENT || t->connected);
    t->shaking = (int) end + 1;
    if (!t->stays_insecure)
        secure_now(t);
}

static void obey(talk *t, hr_end from, hr_next next)
{
    if (from == HR_CLIENT || next != HR_MORE)
        t->next = next;
    if (from == HR_CLIENT) {
        t->session.held = next == HR_HELD;
        t->session.later = next == HR_LATER;
    }
    switch (next) {
    case HR_CONNECT:
        if (!t->stays_unconnected)
            connect_now(t);
        return;
    case HR_CLIENT_TLS_DIRECT:
        t->tls_direct = true;
        t->kept[HR_CLIENT].length = 0;
        shake(t, HR_CLIENT);
        return;
    case HR_CLIENT_TLS: /* what is kept would be the handshake's: here it is what follows it */
        shake(t, HR_CLIENT);
        return;
    case HR_SERVER_TLS:
        t->kept[HR_SERVER].length = 0;
        shake(t, HR_SERVER);
        return;
    case HR_CROWDED:
        assert(t->crowded);
        hr_session_end(&t->session, HR_LOST_SESSIONS);
        return;
    case HR_CLOSE:
        t->closed = true;
        return;
    default:
        return;
    }
}

/* One read's worth, as the engine would give it. What comes while a statement is held waits. */
HARNESS_UNUSED static inline void feed(talk *t, hr_end from, const void *bytes, size_t length)
{
    if (t->closed)
        return;
    append(&t->kept[from], bytes, length);
    if (from == HR_CLIENT && (t->session.held || t->session.later))
        return;
    feed_kept(t, from);
    if (from == HR_SERVER && !t->closed && t->session.later)
        feed_kept(t, HR_CLIENT);
}

/* In pieces of `cut` bytes; 0: whole. */
HARNESS_UNUSED static inline void feed_cut(talk *t, hr_end from, const void *bytes, size_t length,
                                           size_t cut)
{
    const uint8_t *at = bytes;

    while (length > 0 && !t->closed) {
        size_t piece = cut == 0 || cut > length ? length : cut;

        feed(t, from, at, piece);
        at += piece;
        length -= piece;
    }
}

/* In pieces of any length, by the dice of fuzz.h. */
HARNESS_UNUSED static inline void feed_diced(talk *t, hr_end from, const void *bytes, size_t length)
{
    const uint8_t *at = bytes;

    while (length > 0 && !t->closed) {
        size_t piece = 1 + below(below(4) == 0 ? length : length < 16 ? length : 16);

        feed(t, from, at, piece);
        at += piece;
        length -= piece;
    }
}

/* The gate has called hr_wake, or a test wants it looked at again. */
HARNESS_UNUSED static inline void feed_again(talk *t)
{
    if (!t->closed)
        feed_kept(t, HR_CLIENT);
}

HARNESS_UNUSED static inline void end_session(talk *t, hr_lost why)
{
    hr_session_end(&t->session, why);
}

/* ── Time and errands ─────────────────────────────────────────────────────── */

HARNESS_UNUSED static inline void run_errands(world *w)
{
    while (w->errands != NULL) {
        hr_errand *errand = w->errands;

        w->errands = errand->next;
        errand->run(&w->thread[0], errand);
    }
}

/* Moves the clocks of all threads; feed_again is the test's to call. */
HARNESS_UNUSED static inline void pass_ms(world *w, uint64_t ms)
{
    for (uint32_t i = 0; i < HARNESS_THREADS; i++) {
        w->thread[i].now_ns += ms * HARNESS_MS;
        w->thread[i].wall_ms += (int64_t) ms;
    }
}

/* ── What came out ────────────────────────────────────────────────────────── */

HARNESS_UNUSED static inline void show(const char *what, const uint8_t *bytes, size_t length)
{
    fprintf(stderr, "%s (%zu): ", what, length);
    for (size_t i = 0; i < length && i < 512; i++)
        fprintf(stderr, bytes[i] >= ' ' && bytes[i] < 127 ? "%c" : "\\x%02x", bytes[i]);
    fprintf(stderr, "\n");
}

/* Compares all that went to that end since the last time, and forgets it. */
HARNESS_UNUSED static inline bool sent_is(talk *t, hr_end to, const void *bytes, size_t length)
{
    some_bytes *sent = &t->to[to];
    bool same = sent->length == length && (length == 0 || memcmp(sent->bytes, bytes, length) == 0);

    if (!same) {
        show("sent    ", sent->bytes, sent->length);
        show("expected", bytes, length);
    }
    sent->length = 0;
    return same;
}

HARNESS_UNUSED static inline bool sent_nothing(talk *t, hr_end to)
{
    return sent_is(t, to, "", 0);
}

HARNESS_UNUSED static inline bool sent_has(const talk *t, hr_end to, const char *text)
{
    return t->to[to].length > 0
           && memmem(t->to[to].bytes, t->to[to].length, text, strlen(text)) != NULL;
}

HARNESS_UNUSED static inline void forget_sent(talk *t)
{
    t->to[HR_CLIENT].length = t->to[HR_SERVER].length = 0;
}

/* ── The world ────────────────────────────────────────────────────────────── */

HARNESS_UNUSED static inline hg_identity default_identity(void)
{
    hg_identity identity = {.sources = 2, .default_priority = 100};

    identity.source[0].kind = HG_FROM_APPLICATION;
    identity.source[1].kind = HG_FROM_USER;
    return identity;
}

static inline void make_region(world *w)
{
    hg_sizes sizes = {.seats = 16,
                      .budgets = 64,
                      .buckets = 256,
                      .patterns = 256,
                      .policy_bytes = 65536,
                      .traces = 8};
    hr_sizes state_sizes = {.clients = 64, .runnings = 128, .plans = 64};
    size_t region_bytes = hg_region_bytes(&sizes);
    size_t state_bytes = (hr_state_bytes(&state_sizes) + 63) / 64 * 64;

    assert(region_bytes > 0);
    w->relay.region = aligned_alloc(64, (region_bytes + 63) / 64 * 64);
    assert(hg_region_init(w->relay.region, region_bytes, &sizes, 2000, 20, HARNESS_SECOND,
                          HARNESS_WALL_MS)
           == NULL);
    assert(state_bytes > 0);
    w->relay.state = aligned_alloc(64, state_bytes);
    assert(hr_state_init(w->relay.state, state_bytes, &state_sizes) == NULL);
    w->relay.state->enabled = 1;
}

static inline void make_threads(world *w)
{
    w->relay.thread_count = HARNESS_THREADS;
    for (uint32_t i = 0; i < HARNESS_THREADS; i++) {
        hr_thread *thread = &w->thread[i];

        thread->relay = &w->relay;
        thread->number = i;
        thread->seat = i;
        thread->pid = 4242;
        thread->now_ns = 10 * HARNESS_SECOND;
        thread->wall_ms = HARNESS_WALL_MS;
        thread->counts = &w->counts[i];
        w->relay.threads[i] = thread;
        hg_seat_take(w->relay.region, i, thread->pid);
        assert(hr_gate_thread_open(thread));
    }
}

HARNESS_UNUSED static inline world *world_with(uint32_t protocol, const hg_identity *identity)
{
    world *w = calloc(1, sizeof *w);

    assert(w != NULL);
    w->relay.settings = (hr_settings) {.protocol = protocol,
                                       .threads = HARNESS_THREADS,
                                       .max_sessions = 1000,
                                       .startup_timeout_ms = 10000,
                                       .connect_timeout_ms = 5000,
                                       .max_buffer_bytes = 1 << 26};
    make_region(w);
    assert(hr_events_open(&w->relay) && hr_registry_open(&w->relay));
    assert(hr_gate_open(&w->relay, identity));
    make_threads(w);
    return w;
}

HARNESS_UNUSED static inline world *world_open(uint32_t protocol)
{
    hg_identity identity = default_identity();

    return world_with(protocol, &identity);
}

HARNESS_UNUSED static inline hr_running *runnings_of(world *w)
{
    return (hr_running *) ((char *) w->relay.state + w->relay.state->runnings_at);
}

HARNESS_UNUSED static inline hr_client *clients_of(world *w)
{
    return (hr_client *) ((char *) w->relay.state + w->relay.state->clients_at);
}

/* The JSON document of a policy, in force from now on. */
HARNESS_UNUSED static inline void policy(world *w, const char *document, uint64_t version)
{
    compiled one = compile_document(document, version);
    const char *why = hg_publish(w->relay.region, one.policy, one.length, true,
                                 w->thread[0].wall_ms);

    if (why != NULL)
        fprintf(stderr, "publish: %s\n", why);
    assert(why == NULL);
    free(one.policy);
}

/* When all talks are closed nothing may run or wait any more. */
HARNESS_UNUSED static inline void world_close(world *w)
{
    run_errands(w);
    assert(w->talks == 0);
    for (uint32_t i = 0; i < w->relay.state->sizes.runnings; i++)
        assert(runnings_of(w)[i].pid == 0);
    for (uint32_t i = 0; i < HARNESS_THREADS; i++)
        hr_gate_thread_close(&w->thread[i]);
    hr_gate_close(&w->relay);
    hr_registry_close(&w->relay);
    hr_events_close(&w->relay);
    free(w->relay.state);
    free(w->relay.region);
    free(w);
}

HARNESS_UNUSED static inline talk *talk_in(world *w, uint32_t thread)
{
    talk *t = calloc(1, sizeof *t);

    assert(t != NULL && thread < HARNESS_THREADS);
    t->slices = calloc(HARNESS_SLICES, sizeof *t->slices);
    t->world = w;
    t->session.id = ++w->next_id;
    t->session.thread = &w->thread[thread];
    t->session.machine = w->relay.settings.protocol == HR_PROTOCOL_MYSQL ? &hr_my_machine
                                                                         : &hr_pg_machine;
    t->session.since_ns = w->thread[thread].now_ns;
    t->session.family = 4;
    memcpy(t->session.address, "\x7f\0\0\1", 4);
    t->session.side[HR_CLIENT].fd = 1000;
    t->session.side[HR_SERVER].fd = -1;
    hr_gate_session_init(&t->session);
    t->session.machine->init(&t->session);
    w->talks++;
    return t;
}

/* For MySQL it is connected already: the server speaks first. */
HARNESS_UNUSED static inline talk *talk_open(world *w)
{
    talk *t = talk_in(w, 0);

    if (t->session.machine->connects_first)
        connect_now(t);
    return t;
}

HARNESS_UNUSED static inline void talk_close(talk *t)
{
    if (!t->lost) /* as the engine does whatever the reason */
        hr_session_end(&t->session, HR_LOST_CLIENT);
    hr_unregister(&t->session);
    hr_gate_forget(&t->session);
    t->session.machine->free(&t->session);
    hr_gate_session_free(&t->session);
    assert(t->tickets_open == 0 && t->prepared_open == 0);
    for (int end = 0; end < 2; end++) {
        free(t->to[end].bytes);
        free(t->kept[end].bytes);
    }
    free(t->told.bytes);
    free(t->asked.bytes);
    free(t->ended.bytes);
    free(t->slices);
    t->world->talks--;
    free(t);
}

/* ── A script of bytes, for fuzzers ───────────────────────────────────────── */

/* A script is records of one byte, two of length (least significant first), and that many bytes.
 * The byte: bit 0 the end that sends; bits 1–3: 0 to 3 feed whole, 4 feed cut by dice, 5 time passes
 * and what is held is looked at again, 6 the end hangs up, 7 a cancel of what is held. A last record
 * may be cut short. tests/corpus/<name>/ holds such files. */
HARNESS_UNUSED static inline void play_record(talk *t, uint8_t what, const uint8_t *bytes,
                                              size_t length)
{
    hr_end from = (what & 1) != 0 ? HR_SERVER : HR_CLIENT;
    int action = what >> 1 & 7;

    if (from == HR_SERVER && !t->connected)
        from = HR_CLIENT;
    if (action <= 3)
        feed(t, from, bytes, length);
    else if (action == 4)
        feed_diced(t, from, bytes, length);
    else if (action == 6)
        end_session(t, from == HR_CLIENT ? HR_LOST_CLIENT : HR_LOST_SERVER);
    else {
        pass_ms(t->world, 1 + length);
        if (action == 7)
            hr_gate_cancel(&t->session);
        if (t->session.held)
            feed_again(t);
    }
}

HARNESS_UNUSED static inline void play_script(talk *t, const uint8_t *script, size_t length)
{
    dice_state = hg_hash(0, script, length); /* the same input is cut in the same way */
    while (length >= 3 && !t->closed) {
        size_t said = script[1] | (size_t) script[2] << 8;
        size_t have = said < length - 3 ? said : length - 3;

        play_record(t, script[0], script + 3, have);
        script += 3 + have;
        length -= 3 + have;
        /* What went out is not compared here, and must not pile up. */
        forget_sent(t);
    }
}

/* ── A gate of the test's own ─────────────────────────────────────────────── */

#ifdef HARNESS_FAKE_GATE

/* The test says what the gate answers; `words` is its to fill. NULL: GO. */
static hr_said (*harness_says)(talk *t, const char *text, size_t length, uint32_t flags,
                               hr_words *words);

struct hr_prepared {
    uint32_t users;
    talk *owner;
    size_t length;
    bool truncated;
    char *text;
};

bool hr_gate_open(hr_relay *relay, const hg_identity *identity)
{
    (void) relay, (void) identity;
    return true;
}
void hr_gate_close(hr_relay *relay)
{
    (void) relay;
}
bool hr_gate_thread_open(hr_thread *thread)
{
    (void) thread;
    return true;
}
void hr_gate_thread_close(hr_thread *thread)
{
    (void) thread;
}
void hr_gate_session_init(hr_session *session)
{
    memset(&session->gate, 0, sizeof session->gate);
}
void hr_gate_session_free(hr_session *session)
{
    (void) session;
}
void hr_gate_forget(hr_session *session)
{
    session->gate.wait_since_ns = 0;
}
void hr_gate_cancel(hr_session *session)
{
    session->gate.cancelled = true;
}
uint64_t hr_gate_due(const hr_session *session)
{
    return session->gate.wait_next_ns;
}
void hr_gate_stir(hr_thread *thread)
{
    (void) thread;
}
void hr_names_sent(hr_session *session, const char *text, size_t length, bool whole)
{
    (void) session, (void) text, (void) length, (void) whole;
}
void hr_names_ended(hr_session *session, bool failed)
{
    (void) session, (void) failed;
}

void hr_session_names(hr_session *session, const char *username, const char *database,
                      const char *application)
{
    talk *t = talk_of(session);

    if (username != NULL)
        snprintf(t->username, sizeof t->username, "%s", username);
    if (database != NULL)
        snprintf(t->database, sizeof t->database, "%s", database);
    if (application != NULL)
        snprintf(t->application, sizeof t->application, "%s", application);
}

static inline void tell_pair(talk *t, const char *what, const char *name, size_t name_length,
                             const char *value, size_t length)
{
    append_text(&t->told, what);
    append(&t->told, name, name_length);
    append_text(&t->told, "=");
    append(&t->told, value, length);
    append_text(&t->told, "\n");
}

void hr_gate_attribute(hr_session *session, const char *name, size_t name_length, const char *value,
                       size_t length)
{
    tell_pair(talk_of(session), "attribute ", name, name_length, value, length);
}

void hr_gate_variable(hr_session *session, const char *name, size_t name_length, const char *value,
                      size_t length)
{
    tell_pair(talk_of(session), "variable ", name, name_length, value, length);
}

hr_prepared *hr_prepare(hr_session *session, const char *text, size_t length, bool truncated)
{
    hr_prepared *prepared = calloc(1, sizeof *prepared);

    prepared->users = 1;
    prepared->owner = talk_of(session);
    prepared->truncated = truncated;
    prepared->length = length;
    prepared->text = malloc(length + 1);
    memcpy(prepared->text, text, length);
    talk_of(session)->prepared_open++;
    return prepared;
}

hr_prepared *hr_prepared_share(hr_prepared *prepared)
{
    prepared->users++;
    prepared->owner->prepared_open++;
    return prepared;
}

void hr_prepared_drop(hr_session *session, hr_prepared *prepared)
{
    assert(prepared->users > 0 && prepared->owner == talk_of(session));
    prepared->owner->prepared_open--;
    if (--prepared->users > 0)
        return;
    free(prepared->text);
    free(prepared);
}

int hr_prepared_kind(const hr_prepared *prepared)
{
    uint32_t protocol = prepared->owner->world->relay.settings.protocol;
    hr_query query;

    hr_query_read(&query, prepared->text, prepared->length,
                  protocol == HR_PROTOCOL_MYSQL ? HG_MYSQL : HG_POSTGRES);
    return hr_query_kind(&query);
}

void hr_follow_doubted(hr_session *session, const hr_prepared *prepared)
{
    (void) session;
    (void) prepared;
}

const char *hr_prepared_text(const hr_prepared *prepared, size_t *length, bool *whole)
{
    *length = prepared->length;
    *whole = !prepared->truncated;
    return prepared->text;
}

static inline hr_said answer(talk *t, const char *text, size_t length, uint32_t flags,
                             hr_words *words, hr_ticket *ticket, const char *mark)
{
    hr_said said = HR_GO;
    char head[32];

    t->begun = (flags & HR_ASK_BEGUN) != 0;
    snprintf(head, sizeof head, "%x %s", flags & ~(uint32_t) HR_ASK_BEGUN, mark);
    append_text(&t->asked, head);
    append(&t->asked, text, length);
    append_text(&t->asked, "\n");
    *ticket = 0;
    if (t->session.gate.cancelled) {
        t->session.gate.cancelled = false;
        words->cause = HR_BY_CANCEL;
        snprintf(words->message, sizeof words->message, "headgate: cancelled");
        words->detail[0] = words->hint[0] = '\0';
        words->retry_ms = 0;
        return HR_BLOCK;
    }
    if (harness_says != NULL)
        said = harness_says(t, text, length, flags, words);
    if (said == HR_GO || said == HR_GO_WARNED) {
        *ticket = ++t->tickets;
        assert(t->tickets < 1u << 31);
        assert(
            !t->ticket_open[*ticket % 1024]); /* 1024 at once are more than any machine may have */
        t->ticket_open[*ticket % 1024] = true;
        t->tickets_open++;
    }
    return said;
}

hr_said hr_ask(hr_session *session, const hr_query *query, uint32_t flags, hr_words *words,
               hr_ticket *ticket)
{
    return answer(talk_of(session), query == NULL ? NULL : query->text,
                  query == NULL ? 0 : query->length, flags, words, ticket, "");
}

hr_said hr_ask_prepared(hr_session *session, hr_prepared *prepared, uint32_t flags, hr_words *words,
                        hr_ticket *ticket)
{
    return answer(talk_of(session), prepared->text, prepared->length, flags, words, ticket, "P ");
}

static inline void note_end(talk *t, const char *what, hr_ticket ticket, bool failed)
{
    char line[64];

    assert(ticket != 0 && t->ticket_open[ticket % 1024]);
    snprintf(line, sizeof line, "%s %u %s\n", what, ticket, failed ? "failed" : "ok");
    append_text(&t->ended, line);
}

void hr_step(hr_session *session, hr_ticket ticket, bool failed)
{
    if (ticket != 0)
        note_end(talk_of(session), "step", ticket, failed);
}

void hr_done(hr_session *session, hr_ticket ticket, uint64_t started_ns, bool failed)
{
    talk *t = talk_of(session);

    assert(started_ns <= session->thread->now_ns);
    if (ticket == 0)
        return;
    note_end(t, "done", ticket, failed);
    t->ticket_open[ticket % 1024] = false;
    t->tickets_open--;
}

void hr_bound(hr_session *session, hr_ticket ticket)
{
    if (ticket != 0)
        note_end(talk_of(session), "bound", ticket, false);
}

void hr_planned(hr_session *session, hr_ticket ticket, uint64_t started_ns)
{
    hr_done(session, ticket, started_ns, false);
}

void hr_unused(hr_session *session, hr_ticket ticket)
{
    talk *t = talk_of(session);

    if (ticket == 0)
        return;
    note_end(t, "unused", ticket, false);
    t->ticket_open[ticket % 1024] = false;
    t->tickets_open--;
}

void hr_measured(hr_session *session, bool apart)
{
    (void) session;
    (void) apart;
}

/* Compares and empties asked, told or ended. */
HARNESS_UNUSED static inline bool noted(some_bytes *what, const char *expected)
{
    size_t length = strlen(expected);
    bool same = what->length == length
                && (length == 0 || memcmp(what->bytes, expected, length) == 0);

    if (!same) {
        show("noted   ", what->bytes, what->length);
        show("expected", (const uint8_t *) expected, length);
    }
    what->length = 0;
    return same;
}

#endif
#endif
