/*
 * Random clients through the machine to a model of a server, cut anywhere and answered late: what may
 * go is as if the machine were not there; what is blocked never runs, and is answered in its place.
 */
#define HARNESS_FAKE_GATE
#include "pg_server.h"

static world *w;
static uint32_t verdicts; /* 0: all go */
static size_t blocked_strings; /* for which the server may have seen a part */

static hr_said by_dice(talk *t, const char *text, size_t length, uint32_t flags, hr_words *words)
{
    memset(words, 0, sizeof *words);
    words->cause = HR_BY_BUDGET;
    snprintf(words->message, sizeof words->message, "headgate: no");
    (void) t;
    if (length > 3 && memcmp(text + length - 3, " no", 3) == 0)
        return HR_BLOCK;
    if (verdicts == 0 || length == 0)
        return HR_GO;
    switch (below(8)) {
    case 0:
        return HR_GO_WARNED;
    case 1:
        return (flags & HR_ASK_RUNNING) != 0 ? HR_WAIT_TURN : HR_GO;
    case 2:
        return (flags & HR_ASK_IN_TRANSACTION) == 0 ? HR_WAIT : HR_GO;
    default:
        return HR_GO;
    }
}

/* ── A client ─────────────────────────────────────────────────────────────── */

static const char *a_text(bool blocks)
{
    static const char *const texts[] = {"SELECT a", "SELECT b", "INSERT c", "BEGIN",
                                        "COMMIT",   "ROLLBACK", "FAIL",     "COPYOUT",
                                        "SET x",    "SYNTAX",   "SELECT d"};
    static const char *const blocked[] = {"SELECT no", "INSERT no", "SELECT 2 no"};

    if (blocks && below(4) == 0)
        return blocked[below(3)];
    return texts[below(sizeof texts / sizeof *texts)];
}

static void a_name(char *out)
{
    snprintf(out, 16, "%s", below(2) == 0 ? "" : (char[]){'n', (char) ('0' + below(4)), 0});
}

static void a_message(some_bytes *to, bool blocks)
{
    char name[16], portal[16];

    a_name(name);
    a_name(portal);
    switch (below(8)) {
    case 0:
        put_parse(to, name, a_text(blocks));
        return;
    case 1:
        put_bind(to, portal, name);
        return;
    case 2:
        put_execute(to, portal);
        return;
    case 3:
        put_close(to, below(2) == 0 ? 'S' : 'P', name);
        return;
    case 4:
        put_describe(to, portal);
        return;
    case 5:
        put_describe_statement(to, name);
        return;
    case 6:
        put_flush(to);
        return;
    default:
        put_parse(to, portal, a_text(blocks));
        put_bind(to, portal, portal);
        put_describe(to, portal);
        put_execute(to, portal);
    }
}

static void a_copy(some_bytes *to)
{
    bool simple = below(2) == 0;

    if (simple) {
        put_query(to, "COPYIN");
    } else { /* under a name that nobody else executes */
        put_close(to, 'S', "cp");
        put_parse(to, "cp", "COPYIN");
        put_bind(to, "cp", "cp");
        put_execute(to, "cp");
    }
    if (!simple && below(2) == 0)
        put_sync(to); /* the early one */
    put_message(to, 'd', "1\n", 2);
    put_message(to, below(3) == 0 ? 'f' : 'c', "\0", 0);
    if (!simple)
        put_sync(to);
}

static void a_segment(some_bytes *to, bool blocks)
{
    char many[64];

    switch (below(8)) {
    case 0:
        put_query(to, a_text(blocks));
        return;
    case 1:
        snprintf(many, sizeof many, "%s;%s", a_text(false), a_text(blocks));
        blocked_strings += strstr(many, " no") != NULL;
        put_query(to, many);
        return;
    case 2:
        a_copy(to);
        return;
    case 3:
        put_message(to, 'F', "\0\0\0\1\0\0\0\0\0\0", 10);
        return;
    default:
        for (size_t n = below(8); n > 0; n--)
            a_message(to, blocks);
        put_sync(to);
    }
}

/* ── The wire ─────────────────────────────────────────────────────────────── */

/* The client's bytes behind `from` and what is due, a little of each. Whether anything moved. */
static bool move(talk *t, sim *s, const some_bytes *client, size_t *from, bool all)
{
    size_t left = client->length - *from;
    size_t piece = all ? left : below(1 + (left < 200 ? left : 200));
    size_t before = t->to[HR_CLIENT].length + t->tickets;
    bool moved = piece > 0;

    if (t->session.held) {
        feed_again(t);
        moved = true;
    } else if (!t->session.later && piece > 0) {
        feed(t, HR_CLIENT, client->bytes + *from, piece);
        *from += piece;
    } else {
        moved = false;
    }
    if (t->to[HR_SERVER].length > 0) {
        sim_hear(s, t->to[HR_SERVER].bytes, t->to[HR_SERVER].length);
        t->to[HR_SERVER].length = 0;
        moved = true;
    }
    if (s->out.length > 0 && (all || below(2) == 0)) {
        size_t answer_length = all ? s->out.length : 1 + below(s->out.length);
        uint8_t *copy = malloc(answer_length);

        memcpy(copy, s->out.bytes, answer_length);
        take_front(&s->out, answer_length);
        feed(t, HR_SERVER, copy, answer_length);
        free(copy);
        moved = true;
    }
    return moved || before != t->to[HR_CLIENT].length + t->tickets;
}

static void show_state(talk *t, const sim *s)
{
    hr_pg *pg = &t->session.pg;

    show("stuck at", t->kept[HR_CLIENT].bytes, t->kept[HR_CLIENT].length);
    show("executed", s->executed.bytes, s->executed.length);
    fprintf(
        stderr,
        "next %d; server %c skips %d copies %d; block %d skip_until_sync %d copying %d skipping %d\n"
        "sent %u answered %u segment %u of %u\n",
        t->next, s->status, s->skips, s->copies, pg->transaction, pg->skip_until_sync,
        pg->copying_in, pg->server_skips, pg->sent, pg->answered, pg->server_segment, pg->segment);
    for (uint32_t i = 0; i < pg->unit_count; i++) {
        const hr_pg_unit *units = pg->ring == NULL ? pg->here : pg->ring;
        uint32_t room = pg->ring == NULL ? HR_PG_UNITS_HERE : HR_PG_MAX_UNITS;
        const hr_pg_unit *unit = &units[(pg->unit_first + i) % room];

        fprintf(stderr, "unit %u at %u ends %u ticket %u ignored %d\n", unit->kind, unit->at,
                unit->ends_at, unit->ticket, unit->ignored);
    }
}

static void talk_through(talk *t, sim *s, const some_bytes *client)
{
    size_t from = 0;

    while (from < client->length && !t->closed)
        if (!move(t, s, client, &from, below(50) == 0) && t->session.later && s->out.length == 0)
            break; /* it waits for what will never come */
    for (int quiet = 0; quiet < 300 && !t->closed; quiet++)
        if (move(t, s, client, &from, true))
            quiet = 0;
    assert(!t->closed && !s->dead);
    if (from != client->length || t->kept[HR_CLIENT].length != 0)
        show_state(t, s);
    assert(from == client->length && t->kept[HR_CLIENT].length == 0
           && t->kept[HR_SERVER].length == 0);
}

static size_t count_types(const some_bytes *bytes, char type)
{
    size_t found = 0;

    for (size_t at = 0; at + 5 <= bytes->length;) {
        size_t size = (size_t) bytes->bytes[at + 1] << 24 | (size_t) bytes->bytes[at + 2] << 16
                      | (size_t) bytes->bytes[at + 3] << 8 | bytes->bytes[at + 4];

        found += bytes->bytes[at] == (uint8_t) type;
        at += size + 1;
    }
    return found;
}

/* The gate's own notices, which a direct server would not say. */
static void without_notices(some_bytes *bytes)
{
    some_bytes rest = {0};

    for (size_t at = 0; at + 5 <= bytes->length;) {
        size_t size = ((size_t) bytes->bytes[at + 1] << 24 | (size_t) bytes->bytes[at + 2] << 16
                       | (size_t) bytes->bytes[at + 3] << 8 | bytes->bytes[at + 4])
                      + 1;

        if (bytes->bytes[at] != 'N')
            append(&rest, bytes->bytes + at, size);
        at += size;
    }
    free(bytes->bytes);
    *bytes = rest;
}

static void as_if_it_were_not_there(void)
{
    talk *t = open_talk(w);
    sim through = {.status = 'I'}, direct = {.status = 'I'};
    some_bytes client = {0};

    for (size_t n = 1 + below(12); n > 0; n--)
        a_segment(&client, false);
    sim_hear(&direct, client.bytes, client.length);
    if (getenv("ROUNDS") != NULL)
        show("client", client.bytes, client.length);
    talk_through(t, &through, &client);
    without_notices(&t->to[HR_CLIENT]);
    assert(sent_is(t, HR_CLIENT, direct.out.bytes, direct.out.length));
    append(&direct.executed, "", 1);
    assert(noted(&through.executed, (char *) direct.executed.bytes));
    assert(t->session.pg.status == (uint8_t) direct.status && t->session.pg.unit_count == 0);
    assert(t->tickets_open == 0);
    if (direct.status == 'I')
        assert(t->session.machine->at_rest(&t->session));
    talk_close(t);
    sim_free(&through);
    sim_free(&direct);
    free(client.bytes);
}

static void blocked_is_never_run(void)
{
    talk *t = open_talk(w);
    sim through = {.status = 'I'};
    some_bytes client = {0};

    blocked_strings = 0;
    for (size_t n = 1 + below(12); n > 0; n--)
        a_segment(&client, true);
    if (getenv("ROUNDS") != NULL)
        show("blocked client", client.bytes, client.length);
    talk_through(t, &through, &client);
    append(&through.executed, "", 1);
    if (strstr((char *) through.executed.bytes, " no\n") != NULL)
        show_state(t, &through);
    assert(strstr((char *) through.executed.bytes, " no\n") == NULL);
    /* Each segment is ended once: by the server, or here. */
    assert(count_types(&t->to[HR_CLIENT], 'Z') + blocked_strings >= through.readies);
    assert(t->session.pg.status == (uint8_t) through.status && t->session.pg.unit_count == 0);
    assert(t->session.pg.skip_until_sync == 0 && t->tickets_open == 0);
    heard(t); /* nothing but whole messages */
    talk_close(t);
    sim_free(&through);
    free(client.bytes);
}

int main(int argc, char **argv)
{
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 600;
    unsigned long first = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;

    w = world_open(HR_PROTOCOL_POSTGRES);
    harness_says = by_dice;
    for (unsigned long i = first; i < first + rounds; i++) {
        dice_state = i;
        verdicts = (uint32_t) (i & 1);
        if (getenv("ROUNDS") != NULL)
            fprintf(stderr, "%lu\n", i);
        as_if_it_were_not_there();
        blocked_is_never_run();
    }
    world_close(w);
    free(m.bytes);
    return 0;
}
