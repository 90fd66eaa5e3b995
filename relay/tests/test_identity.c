/* Who the client is (R96, R97): declared order, what a session keeps, and names that others can read. */
#include "gate_world.h"

static hg_identity sources(const char *const *given)
{
    hg_identity identity = {.default_priority = 100};

    for (; *given != NULL; given += 2) {
        hg_source *source = &identity.source[identity.sources++];

        source->kind = (uint32_t) atoi(given[0]);
        source->name_length = (uint32_t) strlen(given[1]);
        memcpy(source->name, given[1], strlen(given[1]));
    }
    return identity;
}

/* HG_FROM_* as texts. */
#define TAG "1"
#define ATTRIBUTE "2"
#define APPLICATION "3"
#define VARIABLE "4"
#define USER "5"
#define DATABASE "6"
#define PATTERN "7"

/* Who the statement was counted for. */
static const char *client(world *w, talk *t, const char *text)
{
    const char *identity;

    assert(ask(t, text) == HR_GO && ticket != 0);
    identity = clients_of(w)[runnings_of(w)[ticket - 1].client].identity;
    done(t, ticket);
    return identity;
}

static bool is(const char *a, const char *b)
{
    if (strcmp(a, b) != 0)
        fprintf(stderr, "%s, not %s\n", a, b);
    return strcmp(a, b) == 0;
}

static void the_first_source_that_has_a_value(void)
{
    static const char *const order[] = {TAG,         "job", ATTRIBUTE, "service",
                                        APPLICATION, "",    VARIABLE,  "headgate.client",
                                        USER,        "",    NULL};
    hg_identity identity = sources(order);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *t = asker(w, 0, "etl");

    assert(is(client(w, t, "select 1"), "etl"));
    assert(ask(t, "set headgate.client = 'batch'") == HR_GO);
    assert(is(client(w, t, "select 1"), "batch"));
    hr_session_names(&t->session, NULL, NULL, "psql");
    assert(is(client(w, t, "select 1"), "psql"));
    hr_gate_attribute(&t->session, "service", 7, "billing", 7);
    hr_gate_attribute(&t->session, "other", 5, "no", 2);
    assert(is(client(w, t, "select 1"), "billing"));
    assert(is(client(w, t, "select 1 /*job='nightly:export'*/"), "nightly:export"));
    assert(is(client(w, t, "select 1 /*team='x'*/"), "billing"));
    hr_gate_attribute(&t->session, NULL, 0, NULL, 0);
    hr_session_names(&t->session, NULL, NULL, "");
    assert(is(client(w, t, "select 1"), "batch"));
    assert(ask(t, "reset headgate.client") == HR_GO);
    assert(is(client(w, t, "select 1"), "etl"));
    assert(ask(t, "SET SESSION headgate.client TO other; select 1") == HR_GO);
    done(t, ticket);
    assert(is(client(w, t, "select 1"), "other"));
    assert(ask(t, "set headgate.client to default") == HR_GO);
    assert(is(client(w, t, "select 1"), "etl"));
    assert(ask(t, "set headgate.client = 'x'") == HR_GO && ask(t, "discard all") == HR_GO);
    assert(is(client(w, t, "select 1"), "etl"));
    talk_close(t);
    world_close(w);
}

static void a_user_variable_of_mysql_is_followed(void)
{
    static const char *const order[] = {VARIABLE, "@headgate_client", APPLICATION, "", USER, "",
                                        NULL};
    hg_identity identity = sources(order);
    world *w = world_with(HR_PROTOCOL_MYSQL, &identity);
    talk *t = asker(w, 0, "etl");

    hr_gate_attribute(&t->session, "program_name", 12, "mysqldump", 9);
    assert(is(client(w, t, "select 1"), "mysqldump"));
    assert(ask(t, "SET @a = 1, @headgate_client := \"batch\", NAMES = utf8") == HR_GO);
    assert(is(client(w, t, "select 1"), "batch"));
    assert(ask(t, "set @Headgate_Client = null") == HR_GO);
    assert(is(client(w, t, "select 1"), "mysqldump"));
    hr_gate_variable(&t->session, "headgate_client", 15, "told", 4);
    assert(is(client(w, t, "select 1"), "told"));
    hr_gate_variable(&t->session, NULL, 0, NULL, 0);
    assert(is(client(w, t, "select 1"), "mysqldump"));
    talk_close(t);
    world_close(w);
}

static void names_are_made_readable(void)
{
    static const char *const order[] = {APPLICATION, "", NULL};
    hg_identity identity = sources(order);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *t = asker(w, 0, "etl");
    static const struct {
        const char *given, *name;
    } rows[] = {
        {"  my app (v1.2) ", "my_app__v1.2_"},
        {"a::b:", "a:b"},
        {":::", "unidentified"},
        {"", "unidentified"},
        {"1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8_9"},
        {"gr\xc3\xbc\xc3\x9f", "gr____"},
        {"x@y+z=1/2~%-", "x@y+z=1/2~%-"},
        {"others", "others"},
    };
    char long_name[256];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        hr_session_names(&t->session, NULL, NULL, rows[i].given);
        assert(is(client(w, t, "select 1"), rows[i].name));
    }
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[255] = '\0';
    hr_session_names(&t->session, NULL, NULL, long_name);
    assert(strlen(client(w, t, "select 1")) == HG_MAX_IDENTITY_BYTES);
    assert(w->counts[0].unidentified == 2 && w->counts[0].decided == 9);
    assert(clients_of(w)[HR_UNIDENTIFIED].statements == 2);
    talk_close(t);
    world_close(w);
}

static void a_pattern_is_a_name_of_last_resort(void)
{
    static const char *const order[] = {APPLICATION, "", PATTERN, "", USER, "", NULL};
    hg_identity identity = sources(order);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *t = asker(w, 0, "etl");
    char expected[64];

    snprintf(expected, sizeof expected, "pattern:%016llx",
             (unsigned long long) hg_fingerprint("select 1", 8, HG_POSTGRES));
    assert(is(client(w, t, "select 7"), expected));
    hr_session_names(&t->session, NULL, NULL, "psql");
    assert(is(client(w, t, "select 7"), "psql"));
    talk_close(t);
    world_close(w);
}

/* A table of clients is bounded: beyond it they are "others", until one has been silent. */
static void beyond_the_table_there_are_others(void)
{
    static const char *const order[] = {TAG, "job", NULL};
    hg_identity identity = sources(order);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *t = asker(w, 0, "etl");
    char text[64];

    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, "select 1 /*job='j%d'*/", i);
        client(w, t, text);
    }
    assert(clients_of(w)[HR_OTHERS].statements > 100 && w->relay.state->clients_full > 100);
    assert(is(client(w, t, "select 1 /*job='late'*/"), "others"));
    for (uint32_t i = HR_OTHERS + 1; i < w->relay.state->sizes.clients; i++)
        clients_of(w)[i].reported_admitted = clients_of(w)[i].reported_blocked[HR_CAUSES - 1] = 9;
    pass_ms(w, 600001);
    assert(is(client(w, t, "select 1 /*job='late'*/"), "late"));
    for (uint32_t i = HR_OTHERS + 1; i < w->relay.state->sizes.clients; i++)
        if (strcmp(clients_of(w)[i].identity, "late") == 0) /* nothing of it has been reported */
            assert(clients_of(w)[i].reported_admitted == 0
                   && clients_of(w)[i].reported_blocked[HR_CAUSES - 1] == 0);
    talk_close(t);
    world_close(w);
}

/* New settings hold from the next statement on, for sessions that are there already. */
static void settings_change_while_it_runs(void)
{
    static const char *const before[] = {USER, "", NULL};
    static const char *const after[] = {DATABASE, "", NULL};
    hg_identity identity = sources(before);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *t = asker(w, 0, "etl");
    hr_prepared *prepared = hr_prepare(&t->session, "select 1", 8, false);

    assert(is(client(w, t, "select 1"), "etl"));
    assert(hr_ask_prepared(&t->session, prepared, 0, &words, &ticket) == HR_GO);
    done(t, ticket);
    identity = sources(after);
    assert(hr_identity_put(&w->relay, &identity) == NULL);
    assert(is(client(w, t, "select 1"), "shop"));
    assert(hr_ask_prepared(&t->session, prepared, 0, &words, &ticket) == HR_GO);
    assert(is(clients_of(w)[runnings_of(w)[ticket - 1].client].identity, "shop"));
    done(t, ticket);
    identity.sources = 99;
    assert(hr_identity_put(&w->relay, &identity) != NULL);
    assert(is(client(w, t, "select 1"), "shop"));
    hr_prepared_drop(&t->session, prepared);
    talk_close(t);
    world_close(w);
}

int main(void)
{
    the_first_source_that_has_a_value();
    a_user_variable_of_mysql_is_followed();
    names_are_made_readable();
    a_pattern_is_a_name_of_last_resort();
    beyond_the_table_there_are_others();
    settings_change_while_it_runs();
    puts("test_identity: ok");
    return 0;
}
