/*
 * registry.c: which session a cancel key, a thread id or a session's id belongs to.
 *
 *   cancel request, KILL ──► by process and key ──► an errand to the session's own thread
 *   status ──► hr_sessions: each thread fills in the views of its own sessions
 *
 * One mutex, taken when sessions come and go, by cancel requests and by status; no statement takes
 * it. A session is touched by its own thread alone, so whatever is to be done with one goes there
 * as an errand that names it by id: if it is gone by then, nothing is done.
 */
#include "inside.h"
#include "state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_PLACES 65536u
#define MAX_VIEWS 4096u
#define ANSWER_MS 500u /* of threads, to status; a round is a few ms at most */

enum { PHASE_STARTUP = 0, PHASE_IDLE, PHASE_RUNNING, PHASE_HELD, PHASE_CLOSING, PHASE_UNKNOWN };

typedef struct entry {
    struct entry *next_id, *next_process;
    hr_session *session;
    hr_thread *thread;
    uint64_t id, since_ns, target_id;
    uint32_t target, process;
    bool named; /* is found by process and key */
    uint8_t key_length;
    uint8_t key[32];
} entry;

struct hr_registry {
    pthread_mutex_t lock;
    uint32_t places; /* of both tables; a power of two */
    entry **by_id, **by_process;
    uint32_t count;
};

/* ── Life ─────────────────────────────────────────────────────────────────── */

bool hr_registry_open(hr_relay *relay)
{
    struct hr_registry *registry = calloc(1, sizeof *registry);

    if (registry == NULL)
        return false;
    registry->places = 64;
    while (registry->places < relay->settings.max_sessions && registry->places < MAX_PLACES)
        registry->places *= 2;
    registry->by_id = calloc(registry->places, sizeof(entry *));
    registry->by_process = calloc(registry->places, sizeof(entry *));
    if (registry->by_id == NULL || registry->by_process == NULL) {
        free(registry->by_id);
        free(registry->by_process);
        free(registry);
        return false;
    }
    pthread_mutex_init(&registry->lock, NULL);
    relay->registry = registry;
    return true;
}

/* After all sessions have gone; those that have not are forgotten. */
void hr_registry_close(hr_relay *relay)
{
    struct hr_registry *registry = relay->registry;

    relay->registry = NULL;
    if (registry == NULL)
        return;
    for (uint32_t i = 0; i < registry->places; i++)
        for (entry *one = registry->by_id[i], *next; one != NULL; one = next) {
            next = one->next_id;
            free(one);
        }
    free(registry->by_id);
    free(registry->by_process);
    pthread_mutex_destroy(&registry->lock);
    free(registry);
}

static entry **place_of_id(struct hr_registry *registry, uint64_t id)
{
    return &registry->by_id[hg_hash(0, &id, sizeof id) & (registry->places - 1)];
}

static entry **place_of_process(struct hr_registry *registry, uint32_t process)
{
    return &registry->by_process[hg_hash(1, &process, sizeof process) & (registry->places - 1)];
}

/* ── Coming and going ─────────────────────────────────────────────────────── */

static void unname(struct hr_registry *registry, entry *one)
{
    entry **at = place_of_process(registry, one->process);

    if (!one->named)
        return;
    while (*at != one)
        at = &(*at)->next_process;
    *at = one->next_process;
    one->named = false;
}

/* What the session's start-up has brought. */
static void update(struct hr_registry *registry, entry *one)
{
    const hr_session *session = one->session;
    entry **at;

    unname(registry, one);
    one->target = session->target;
    one->target_id = session->target_id;
    one->process = session->server_process;
    one->key_length = session->cancel_key_length <= sizeof one->key ? session->cancel_key_length
                                                                    : (uint8_t) sizeof one->key;
    memcpy(one->key, session->cancel_key, one->key_length);
    if (!session->established || one->process == 0)
        return;
    at = place_of_process(registry, one->process);
    one->next_process = *at;
    *at = one;
    one->named = true;
}

static entry *new_entry(struct hr_registry *registry, hr_session *session)
{
    entry *one = calloc(1, sizeof *one);
    entry **at;

    if (one == NULL)
        return NULL;
    one->session = session;
    one->thread = session->thread;
    one->id = session->id;
    one->since_ns = session->since_ns;
    at = place_of_id(registry, one->id);
    one->next_id = *at;
    *at = one;
    registry->count++;
    return one;
}

void hr_register(hr_session *session)
{
    struct hr_registry *registry = session->thread->relay->registry;

    if (registry == NULL)
        return;
    pthread_mutex_lock(&registry->lock);
    if (session->registered == NULL)
        session->registered = new_entry(registry, session);
    if (session->registered != NULL)
        update(registry, session->registered);
    pthread_mutex_unlock(&registry->lock);
}

void hr_unregister(hr_session *session)
{
    struct hr_registry *registry = session->thread->relay->registry;
    entry *one = session->registered;
    entry **at;

    if (registry == NULL || one == NULL)
        return;
    session->registered = NULL;
    pthread_mutex_lock(&registry->lock);
    unname(registry, one);
    at = place_of_id(registry, one->id);
    while (*at != one)
        at = &(*at)->next_id;
    *at = one->next_id;
    registry->count--;
    pthread_mutex_unlock(&registry->lock);
    free(one);
}

static entry *find_id(struct hr_registry *registry, uint64_t id)
{
    entry *one = *place_of_id(registry, id);

    while (one != NULL && one->id != id)
        one = one->next_id;
    return one;
}

/* ── Errands ──────────────────────────────────────────────────────────────── */

typedef struct order {
    hr_errand errand;
    uint64_t id;
    bool ends; /* the session; else what it holds is cancelled */
} order;

/* In the session's own thread, so that it stays where it is after the lock is given back. */
static hr_session *own_session(hr_thread *thread, uint64_t id)
{
    struct hr_registry *registry = thread->relay->registry;
    hr_session *session;
    entry *one;

    pthread_mutex_lock(&registry->lock);
    one = find_id(registry, id);
    session = one == NULL || one->thread != thread ? NULL : one->session;
    pthread_mutex_unlock(&registry->lock);
    return session;
}

static void carry_out(hr_thread *thread, hr_errand *errand)
{
    order *given = (order *) errand;
    hr_session *session = own_session(thread, given->id);

    if (session != NULL && given->ends)
        hr_session_end(session, HR_LOST_KILLED);
    else if (session != NULL && session->held) {
        hr_gate_cancel(session);
        hr_wake(thread, session, session->id);
    }
    free(given);
}

/* False: nobody will do it. */
static bool give_order(hr_thread *owner, uint64_t id, bool ends)
{
    order *given = calloc(1, sizeof *given);

    if (given == NULL)
        return false;
    given->errand.run = carry_out;
    given->id = id;
    given->ends = ends;
    if (hr_post(owner, &given->errand))
        return true;
    free(given);
    return false;
}

/* ── Cancels and kills ────────────────────────────────────────────────────── */

/* In the same time wherever they differ: the key is what a stranger would have to guess. */
static bool same_key(const entry *one, const uint8_t *key, size_t length)
{
    size_t compared = length < sizeof one->key ? length : sizeof one->key;
    uint8_t differs = (uint8_t) (compared != one->key_length);

    for (size_t i = 0; i < compared && i < one->key_length; i++)
        differs |= (uint8_t) (one->key[i] ^ key[i]);
    return differs == 0;
}

/* A held statement that goes its way between this look and the errand runs uncancelled: as with the
 * server's own cancel requests, there is no promise. */
static bool cancel_if_held(entry *one)
{
    return one->session->held && give_order(one->thread, one->id, false);
}

bool hr_cancel_find(hr_relay *relay, uint32_t process, const uint8_t *key, size_t key_length,
                    uint32_t *target, uint64_t *target_id, bool *forward)
{
    struct hr_registry *registry = relay->registry;
    entry *one;

    pthread_mutex_lock(&registry->lock);
    one = *place_of_process(registry, process);
    while (one != NULL && (one->process != process || !same_key(one, key, key_length)))
        one = one->next_process;
    if (one != NULL) {
        *target = one->target;
        *target_id = one->target_id;
        *forward = !cancel_if_held(one);
    }
    pthread_mutex_unlock(&registry->lock);
    return one != NULL;
}

/* Of several servers, two may number a thread alike: the one that got the request to kill is meant. */
bool hr_kill_find(hr_relay *relay, uint64_t target_id, uint32_t process)
{
    struct hr_registry *registry = relay->registry;
    entry *one;

    pthread_mutex_lock(&registry->lock);
    one = *place_of_process(registry, process);
    while (one != NULL
           && (one->process != process || one->target_id != target_id || !cancel_if_held(one)))
        one = one->next_process;
    pthread_mutex_unlock(&registry->lock);
    return one != NULL;
}

bool hr_session_kill(hr_relay *relay, uint64_t id)
{
    struct hr_registry *registry = relay->registry;
    entry *one;
    bool told;

    pthread_mutex_lock(&registry->lock);
    one = find_id(registry, id);
    told = one != NULL && give_order(one->thread, id, true);
    pthread_mutex_unlock(&registry->lock);
    return told;
}

/* ── Views ────────────────────────────────────────────────────────────────── */

typedef struct row {
    hr_thread *thread;
    bool gone;
    hr_session_view view;
} row;

/* The caller may have given up when a thread answers: the last of them frees it. */
typedef struct survey {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    uint32_t users, missing;
    uint32_t rows;
    row row[];
} survey;

typedef struct question {
    hr_errand errand;
    survey *survey;
} question;

static void leave(survey *asked)
{
    bool last;

    pthread_mutex_lock(&asked->lock);
    last = --asked->users == 0;
    pthread_mutex_unlock(&asked->lock);
    if (!last)
        return;
    pthread_cond_destroy(&asked->answered);
    pthread_mutex_destroy(&asked->lock);
    free(asked);
}

static void copy_name(char out[64], const char *name)
{
    size_t length = name == NULL ? 0 : strnlen(name, 63);

    memset(out, 0, 64);
    if (length > 0)
        memcpy(out, name, length);
}

/* Nothing runs between the statements of a transaction either. */
static uint8_t phase_of(const hr_session *session)
{
    if (session->closing)
        return PHASE_CLOSING;
    if (!session->established)
        return PHASE_STARTUP;
    if (session->held)
        return PHASE_HELD;
    return session->machine->at_rest(session)
                   || (session->machine->in_transaction(session)
                       && session->statement_since_ns == 0)
               ? PHASE_IDLE
               : PHASE_RUNNING;
}

static void name_view(const hr_session *session, hr_session_view *view)
{
    const hr_gate_session *gate = &session->gate;
    const hr_state *state = session->thread->relay->state;

    if (gate->names != NULL) {
        copy_name(view->username, gate->names);
        copy_name(view->database, gate->names + gate->database_at);
        copy_name(view->application, gate->names + gate->application_at);
    }
    if (state != NULL && gate->client < state->sizes.clients) {
        const hr_client *clients = (const hr_client *) ((const char *) state + state->clients_at);
        char identity[HG_MAX_IDENTITY_BYTES + 1];

        if (hr_client_name(&clients[gate->client], gate->client_key, identity))
            copy_name(view->client, identity);
    }
}

/* In the session's own thread. */
static void fill_view(const hr_session *session, hr_session_view *view)
{
    view->target = session->target_id;
    view->server_process = session->server_process;
    view->phase = phase_of(session);
    view->statement_since_ns = view->phase == PHASE_HELD      ? session->gate.wait_since_ns
                               : view->phase == PHASE_RUNNING ? session->statement_since_ns
                                                              : 0;
    view->in_transaction = session->established && session->machine->in_transaction(session);
    view->tls_client = session->side[HR_CLIENT].tls != NULL;
    view->tls_server = session->side[HR_SERVER].tls != NULL;
    view->family = session->family;
    view->port = session->port;
    memcpy(view->address, session->address, sizeof view->address);
    name_view(session, view);
}

static void answer_survey(hr_thread *thread, hr_errand *errand)
{
    question *put = (question *) errand;
    survey *asked = put->survey;

    pthread_mutex_lock(&asked->lock);
    for (uint32_t i = 0; i < asked->rows; i++) {
        row *one = &asked->row[i];
        hr_session *session;

        if (one->thread != thread)
            continue;
        session = own_session(thread, one->view.id);
        one->gone = session == NULL;
        if (session != NULL)
            fill_view(session, &one->view);
    }
    if (--asked->missing == 0)
        pthread_cond_signal(&asked->answered);
    pthread_mutex_unlock(&asked->lock);
    leave(asked);
    free(put);
}

static int by_number(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *) left, b = *(const uint64_t *) right;

    return a < b ? -1 : a > b;
}

/* Ids of all sessions after that one, ascending; NULL: no memory. */
static uint64_t *ids_after(struct hr_registry *registry, uint64_t after_id, uint32_t *found)
{
    uint64_t *ids = malloc((registry->count + 1) * sizeof *ids);

    *found = 0;
    if (ids == NULL)
        return NULL;
    for (uint32_t i = 0; i < registry->places; i++)
        for (const entry *one = registry->by_id[i]; one != NULL; one = one->next_id)
            if (one->id > after_id)
                ids[(*found)++] = one->id;
    qsort(ids, *found, sizeof *ids, by_number);
    return ids;
}

static void begin_row(const entry *one, row *to)
{
    to->thread = one->thread;
    to->view.id = one->id;
    to->view.since_ns = one->since_ns;
    to->view.target = one->target_id;
    to->view.server_process = one->process;
    to->view.phase = PHASE_UNKNOWN;
}

static survey *begin_survey(struct hr_registry *registry, uint64_t after_id, uint32_t most)
{
    survey *asked = NULL;
    uint32_t found;
    uint64_t *ids;

    pthread_mutex_lock(&registry->lock);
    ids = ids_after(registry, after_id, &found);
    if (found > most)
        found = most;
    if (ids != NULL)
        asked = calloc(1, sizeof *asked + found * sizeof(row));
    for (uint32_t i = 0; asked != NULL && i < found; i++)
        begin_row(find_id(registry, ids[i]), &asked->row[asked->rows++]);
    pthread_mutex_unlock(&registry->lock);
    free(ids);
    return asked;
}

static bool concerns(const survey *asked, const hr_thread *thread)
{
    for (uint32_t i = 0; i < asked->rows; i++)
        if (asked->row[i].thread == thread)
            return true;
    return false;
}

static void ask_threads(hr_relay *relay, survey *asked)
{
    for (uint32_t i = 0; i < relay->thread_count; i++) {
        question *put;

        if (!concerns(asked, relay->threads[i]) || (put = calloc(1, sizeof *put)) == NULL)
            continue;
        put->errand.run = answer_survey;
        put->survey = asked;
        pthread_mutex_lock(&asked->lock);
        asked->users++;
        asked->missing++;
        pthread_mutex_unlock(&asked->lock);
        if (hr_post(relay->threads[i], &put->errand))
            continue;
        pthread_mutex_lock(&asked->lock);
        asked->users--;
        asked->missing--;
        pthread_mutex_unlock(&asked->lock);
        free(put);
    }
}

static void wait_for_answers(survey *asked)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long) ANSWER_MS * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (asked->missing > 0
           && pthread_cond_timedwait(&asked->answered, &asked->lock, &until) != ETIMEDOUT)
        ;
}

static void open_survey(survey *asked)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&asked->lock, NULL);
    pthread_cond_init(&asked->answered, &attributes);
    pthread_condattr_destroy(&attributes);
    asked->users = 1;
}

uint32_t hr_sessions(hr_relay *relay, uint64_t after_id, hr_session_view *views, uint32_t most)
{
    survey *asked = begin_survey(relay->registry, after_id, most < MAX_VIEWS ? most : MAX_VIEWS);
    uint32_t count = 0;

    if (asked == NULL)
        return 0;
    open_survey(asked);
    ask_threads(relay, asked);
    pthread_mutex_lock(&asked->lock);
    wait_for_answers(asked);
    for (uint32_t i = 0; i < asked->rows; i++)
        if (!asked->row[i].gone)
            views[count++] = asked->row[i].view;
    /* Late answers find nothing to fill. */
    asked->rows = 0;
    pthread_mutex_unlock(&asked->lock);
    leave(asked);
    return count;
}
