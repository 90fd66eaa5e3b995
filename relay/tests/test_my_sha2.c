/*
 * test_my_sha2.c: full authentication by caching_sha2_password, as MySQL 8 does it, where one side alone
 * has TLS: the test is the server with its key, and the client that encrypts.
 */
#define HARNESS_FAKE_GATE
#include "my_words.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>

static const char scramble[] = "abcdefghijklmnopqrst"; /* of my_words.h's greeting */
static const char password[] = "s3cret";                /* goes with its NUL */
static world *w;

static size_t by_rsa(EVP_PKEY *key, bool encrypts, const uint8_t *in, size_t length, uint8_t *out)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new(key, NULL);
    size_t out_length = 512;

    assert((encrypts ? EVP_PKEY_encrypt_init : EVP_PKEY_decrypt_init)(context) == 1);
    assert(EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_OAEP_PADDING) == 1);
    assert((encrypts ? EVP_PKEY_encrypt : EVP_PKEY_decrypt)(context, out, &out_length, in, length)
           == 1);
    EVP_PKEY_CTX_free(context);
    return out_length;
}

static words key_packet(EVP_PKEY *key, uint8_t seq)
{
    BIO *out = BIO_new(BIO_s_mem());
    uint8_t text[1024] = {1};
    int length;

    assert(PEM_write_bio_PUBKEY(out, key) == 1);
    length = BIO_read(out, text + 1, sizeof text - 1);
    BIO_free(out);
    return packet_of(seq, text, 1 + (size_t) length);
}

/* The one packet that went to an end. */
static words taken(talk *t, hr_end to)
{
    words it = {.length = 0};

    assert(t->to[to].length >= MY_HEADER
           && t->to[to].length == MY_HEADER + my_length(t->to[to].bytes));
    add(&it, t->to[to].bytes, t->to[to].length);
    t->to[to].length = 0;
    return it;
}

static talk *begin_full(bool client_tls, bool server_tls)
{
    talk *t = talk_open(w);

    t->session.client_tls_mode = client_tls;
    t->session.server_tls_mode = server_tls ? 2 : 0;
    my_sha2_expect(&t->session);
    say(t, HR_SERVER, greeting(0xffffffff, 0));
    if (client_tls)
        say(t, HR_CLIENT, ssl_request(1, MY_CLIENT, 0));
    say(t, HR_CLIENT, response(client_tls ? 2 : 1, MY_CLIENT | (client_tls ? MY_CAN_SSL : 0), 0));
    forget_sent(t);
    say(t, HR_SERVER, P(server_tls ? 3 : 2, "\x01\x04"));
    assert(heard(t, HR_CLIENT, P(client_tls ? 3 : 2, "\x01\x04")));
    return t;
}

static void blend(uint8_t *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        text[i] ^= (uint8_t) scramble[i % 20];
}

/* The password never goes in clear to a server without TLS. */
static void client_with_tls_server_without(EVP_PKEY *key)
{
    talk *t = begin_full(true, false);
    uint8_t plain[512];
    words sent;

    say(t, HR_CLIENT, packet_of(4, password, sizeof password));
    assert(heard(t, HR_SERVER, P(3, "\x02")) && sent_nothing(t, HR_CLIENT));
    say(t, HR_SERVER, key_packet(key, 4));
    assert(sent_nothing(t, HR_CLIENT));
    sent = taken(t, HR_SERVER);
    assert(sent.bytes[3] == 5);
    assert(by_rsa(key, false, sent.bytes + 4, sent.length - 4, plain) == sizeof password);
    blend(plain, sizeof password);
    assert(memcmp(plain, password, sizeof password) == 0);
    assert(t->session.my.more->secret == NULL);
    say(t, HR_SERVER, ok(6, MY_AUTOCOMMIT));
    assert(heard(t, HR_CLIENT, ok(5, MY_AUTOCOMMIT)) && t->session.established);
    passes(t, HR_CLIENT, query("SELECT 1"));
    passes(t, HR_SERVER, ok(1, MY_AUTOCOMMIT));
    talk_close(t);

    t = begin_full(true, false); /* a server that has no key says so */
    say(t, HR_CLIENT, packet_of(4, password, sizeof password));
    forget_sent(t);
    say(t, HR_SERVER, error(4, 1045, "Access denied"));
    assert(heard(t, HR_CLIENT, error(5, 1045, "Access denied")) && t->closed);
    talk_close(t);

    t = begin_full(true, false); /* and one whose key is none is not believed */
    say(t, HR_CLIENT, packet_of(4, password, sizeof password));
    forget_sent(t);
    say(t, HR_SERVER, P(4, "\x01-----BEGIN PUBLIC KEY-----"));
    assert(sent_has(t, HR_CLIENT, "public key") && sent_nothing(t, HR_SERVER) && t->closed);
    talk_close(t);
}

/* The client is lent a key of the proxy's own. */
static void client_without_tls_server_with(void)
{
    talk *t = begin_full(false, true);
    uint8_t plain[sizeof password], encrypted[512];
    EVP_PKEY *key;
    size_t length;
    words sent;
    BIO *in;

    say(t, HR_CLIENT, P(3, "\x02"));
    assert(sent_nothing(t, HR_SERVER));
    sent = taken(t, HR_CLIENT);
    assert(sent.bytes[3] == 4 && sent.bytes[4] == 1);
    in = BIO_new_mem_buf(sent.bytes + 5, (int) sent.length - 5);
    key = PEM_read_bio_PUBKEY(in, NULL, NULL, NULL);
    BIO_free(in);
    assert(key != NULL);
    memcpy(plain, password, sizeof password);
    blend(plain, sizeof plain);
    length = by_rsa(key, true, plain, sizeof plain, encrypted);
    EVP_PKEY_free(key);
    say(t, HR_CLIENT, packet_of(5, encrypted, length));
    assert(heard(t, HR_SERVER, packet_of(4, password, sizeof password))
           && sent_nothing(t, HR_CLIENT));
    say(t, HR_SERVER, ok(5, MY_AUTOCOMMIT));
    assert(heard(t, HR_CLIENT, ok(6, MY_AUTOCOMMIT)) && t->session.established);
    talk_close(t);

    t = begin_full(
        false,
        true); /* encrypted with a key of the server's that the client has: nobody can read it */
    say(t, HR_CLIENT, packet_of(3, encrypted, length));
    assert(sent_has(t, HR_CLIENT, "--get-server-public-key") && sent_nothing(t, HR_SERVER)
           && t->closed);
    talk_close(t);
}

/* Alike on both sides: opaque. */
static void sides_alike(void)
{
    talk *t = begin_full(true, true);

    say(t, HR_CLIENT, packet_of(4, password, sizeof password));
    assert(heard(t, HR_SERVER, packet_of(4, password, sizeof password)));
    say(t, HR_SERVER, ok(5, MY_AUTOCOMMIT));
    assert(heard(t, HR_CLIENT, ok(5, MY_AUTOCOMMIT)) && t->session.established);
    talk_close(t);
}

int main(void)
{
    static const size_t cuts[] = {0, 1, 3, 7};
    EVP_PKEY *key = EVP_RSA_gen(2048);

    w = world_open(HR_PROTOCOL_MYSQL);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        cut = cuts[i];
        client_with_tls_server_without(key);
        client_without_tls_server_with();
        sides_alike();
    }
    world_close(w);
    EVP_PKEY_free(key);
    printf("test_my_sha2: %zu cuts\n", sizeof cuts / sizeof *cuts);
    return 0;
}
