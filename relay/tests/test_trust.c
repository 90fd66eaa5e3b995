/* Whose tags count (R149): from some users, or signed; dropped before anybody else sees them. */
#include "gate_world.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

static const char secret[] = "a secret of thirty-two bytes, hm";

static hg_identity trusting(bool by_signature)
{
    hg_identity identity = {.sources = 2, .trusts = 1, .default_priority = 100};

    identity.source[0] = (hg_source){HG_FROM_TAG, 3, "job"};
    identity.source[1].kind = HG_FROM_USER;
    strcpy(identity.trust[0].key, "job");
    identity.trust[0].users = 1;
    strcpy(identity.trust[0].user[0], "airflow");
    identity.trust[0].by_signature = by_signature;
    identity.secret_length = sizeof secret - 1;
    memcpy(identity.secret, secret, sizeof secret - 1);
    return identity;
}

static void sign(const char *message, char *hex)
{
    uint8_t digest[64];
    unsigned int size;

    assert(HMAC(EVP_sha256(), secret, sizeof secret - 1, (const uint8_t *) message, strlen(message),
                digest, &size)
           != NULL);
    for (unsigned int i = 0; i < size; i++)
        sprintf(hex + 2 * i, "%02x", digest[i]);
}

/* A statement of these tags, as the user's, until then. */
static void signed_text(char *out, const char *tags, const char *sorted, const char *user,
                        long long expires)
{
    char message[512];
    char hex[129];

    sprintf(message, "v1\n%lld\n%s\n%s", expires, user, sorted);
    sign(message, hex);
    sprintf(out, "select 1 /*%s,headgate_sig='v1.%lld.%s'*/", tags, expires, hex);
}

static const char *client(world *w, talk *t, const char *text)
{
    const char *identity;

    assert(ask(t, text) == HR_GO);
    identity = clients_of(w)[runnings_of(w)[ticket - 1].client].identity;
    done(t, ticket);
    return identity;
}

static void a_bound_tag_counts_from_its_users_alone(void)
{
    hg_identity identity = trusting(false);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *t = asker(w, 0, "airflow");

    policy(
        w,
        "{'budgets':[{'name':'vip','mode':'enforce','max_workers':5,'rules':[{'match':{'tag.job':'x'}}]}]}",
        1);
    assert(strcmp(client(w, t, "select 1 /*job='x'*/"), "x") == 0
           && count_of(w, "vip")->admitted == 1);
    hr_session_names(&t->session, "mallory", NULL, NULL);
    assert(strcmp(client(w, t, "select 1 /*job='x'*/"), "mallory") == 0);
    assert(count_of(w, "vip")->admitted == 1 && w->counts[0].untrusted_tags == 1);
    hr_session_names(&t->session, "airflow2", NULL, NULL); /* no prefix of it either */
    assert(strcmp(client(w, t, "select 1 /*job='x'*/"), "airflow2") == 0);
    talk_close(t);
    world_close(w);
}

/* The same prepared text of two users: what is found for one is not the other's. */
static void who_runs_a_prepared_text_decides(void)
{
    hg_identity identity = trusting(false);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *good = asker(w, 0, "airflow");
    talk *bad = asker(w, 0, "mallory");
    const char *text = "select 1 /*job='x'*/";
    hr_prepared *prepared = hr_prepare(&good->session, text, strlen(text), false);

    for (int i = 0; i < 3; i++) {
        assert(hr_ask_prepared(&good->session, prepared, 0, &words, &ticket) == HR_GO);
        assert(strcmp(clients_of(w)[runnings_of(w)[ticket - 1].client].identity, "x") == 0);
        done(good, ticket);
        assert(hr_ask_prepared(&bad->session, prepared, 0, &words, &ticket) == HR_GO);
        assert(strcmp(clients_of(w)[runnings_of(w)[ticket - 1].client].identity, "mallory") == 0);
        done(bad, ticket);
    }
    hr_prepared_drop(&good->session, prepared);
    talk_close(good);
    talk_close(bad);
    world_close(w);
}

static void a_signature_vouches_for_all_tags_one_user_and_some_time(void)
{
    hg_identity identity = trusting(true);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *t = asker(w, 0, "web");
    long long expires = w->thread[0].wall_ms / 1000 + 60;
    char text[512];
    char *at;

    signed_text(text, "team='b',job='x'", "job=x\nteam=b\n", "web", expires);
    for (int i = 0; i < 3; i++)
        assert(strcmp(client(w, t, text), "x") == 0);
    hr_session_names(&t->session, "mallory", NULL, NULL);
    assert(strcmp(client(w, t, text), "mallory") == 0); /* another's signature */
    hr_session_names(&t->session, "web", NULL, NULL);
    at = strstr(text, "team='b'");
    at[6] = 'c';
    assert(strcmp(client(w, t, text), "web") == 0); /* another tag, though that one is free */
    at[6] = 'b';
    at = strstr(text, "headgate_sig='v1.");
    at[strlen("headgate_sig='v1.") + strlen("1700000060.") + 3] ^= 1;
    assert(strcmp(client(w, t, text), "web") == 0); /* another digest */
    signed_text(text, "job='x'", "job=x\n", "web", expires);
    assert(strcmp(client(w, t, text), "x") == 0);
    pass_ms(w, 60000);
    assert(strcmp(client(w, t, text), "web") == 0); /* too late */
    talk_close(t);
    world_close(w);
}

/* A remembered verdict ends with the signature. */
static void a_prepared_signature_ends_too(void)
{
    hg_identity identity = trusting(true);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *t = asker(w, 0, "web");
    char text[512];
    hr_prepared *prepared;

    signed_text(text, "job='x'", "job=x\n", "web", w->thread[0].wall_ms / 1000 + 60);
    prepared = hr_prepare(&t->session, text, strlen(text), false);
    assert(hr_ask_prepared(&t->session, prepared, 0, &words, &ticket) == HR_GO);
    assert(strcmp(clients_of(w)[runnings_of(w)[ticket - 1].client].identity, "x") == 0);
    done(t, ticket);
    pass_ms(w, 60000);
    assert(hr_ask_prepared(&t->session, prepared, 0, &words, &ticket) == HR_GO);
    assert(strcmp(clients_of(w)[runnings_of(w)[ticket - 1].client].identity, "web") == 0);
    done(t, ticket);
    hr_prepared_drop(&t->session, prepared);
    talk_close(t);
    world_close(w);
}

static void malformed_signatures_vouch_for_nothing(void)
{
    static const char *const bad[] = {
        "v1.", "v1..", "v1.1", "v2.1700000060.00", "v1.99999999999999999.0", "v1.1700000060.zz",
        "x"};
    hg_identity identity = trusting(true);
    world *w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    talk *t = asker(w, 0, "web");
    char text[512];

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "select 1 /*job='x',headgate_sig='%s'*/", bad[i]);
        assert(strcmp(client(w, t, text), "web") == 0);
    }
    identity.secret_length = 0;
    assert(hr_identity_put(&w->relay, &identity) == NULL);
    signed_text(text, "job='x'", "job=x\n", "web", w->thread[0].wall_ms / 1000 + 60);
    assert(strcmp(client(w, t, text), "web") == 0); /* without a secret nothing can be signed */
    talk_close(t);
    world_close(w);
}

/* "*" is every tag that has no row of its own. */
static void every_tag_can_be_bound(void)
{
    hg_identity identity = trusting(false);
    world *w;
    talk *t;

    strcpy(identity.trust[0].key, "*");
    identity.trust[0].users = 0;
    identity.trusts = 2;
    strcpy(identity.trust[1].key, "team");
    identity.trust[1].users = 1;
    strcpy(identity.trust[1].user[0], "web");
    identity.source[0] = (hg_source){HG_FROM_TAG, 4, "team"};
    w = world_with(HR_PROTOCOL_POSTGRES, &identity);
    t = asker(w, 0, "web");
    assert(strcmp(client(w, t, "select 1 /*team='b',job='x'*/"), "b") == 0);
    assert(w->counts[0].untrusted_tags == 1);
    talk_close(t);
    world_close(w);
}

int main(void)
{
    a_bound_tag_counts_from_its_users_alone();
    who_runs_a_prepared_text_decides();
    a_signature_vouches_for_all_tags_one_user_and_some_time();
    a_prepared_signature_ends_too();
    malformed_signatures_vouch_for_nothing();
    every_tag_can_be_bound();
    puts("test_trust: ok");
    return 0;
}
