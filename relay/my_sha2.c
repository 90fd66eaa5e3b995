/*
 * my_sha2.c: full authentication by caching_sha2_password where one side alone has TLS.
 *
 * A side with TLS sends the password in clear, one without encrypts it with the server's public key;
 * client and server each decide by their own side. So where only one has TLS the proxy, which ends TLS and
 * sees everything anyway, is between: it encrypts for a server without, and lends a key of its own to
 * a client without. On neither side does a password go in clear outside TLS.
 *
 *   client TLS, server plain     ◄─ 01 04 ─┤    password ─►│ 02 ─►  ◄─ 01 key   encrypted ─►    OK
 *   client plain, server TLS     ◄─ 01 04 ─┤    02 ─►│  ◄─ 01 our key    encrypted ─►│ password ─►  OK
 */
#include "my_inside.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <stdlib.h>

#define MOST 1024u /* of a key or a secret */

/* ── Our key ──────────────────────────────────────────────────────────────── */

static pthread_once_t made_once = PTHREAD_ONCE_INIT, begun_once = PTHREAD_ONCE_INIT;
static EVP_PKEY *our_key;
static char our_key_text[MOST];
static size_t our_key_length;

static void make_key(void)
{
    BIO *out = BIO_new(BIO_s_mem());

    our_key = EVP_RSA_gen(2048);
    if (our_key != NULL && out != NULL && PEM_write_bio_PUBKEY(out, our_key) == 1)
        our_key_length = (size_t) BIO_read(out, our_key_text, sizeof our_key_text);
    BIO_free(out);
}

static void *make_beside(void *nothing)
{
    pthread_once(&made_once, make_key);
    return nothing;
}

static pthread_t maker;

static void await_maker(void)
{
    pthread_join(maker, NULL);
}

/* It takes a tenth of a second: in a thread of its own, before anybody needs it. OpenSSL takes itself down
 * when the process exits, and must not be in use then: our exit comes first, as it is asked for last. */
static void begin_making(void)
{
    OPENSSL_init_crypto(0, NULL);
    if (pthread_create(&maker, NULL, make_beside, NULL) == 0)
        atexit(await_maker);
}

void my_sha2_expect(const hr_session *session)
{
    if (session->server_tls_mode != 0 && session->client_tls_mode != 2)
        pthread_once(&begun_once, begin_making);
}

/* ── Secrets ──────────────────────────────────────────────────────────────── */

typedef int crypt_init(EVP_PKEY_CTX *context);
typedef int crypt(EVP_PKEY_CTX *context, unsigned char *out, size_t *out_length,
                  const unsigned char *in, size_t length);

/* One block by RSA with OAEP. 0: it cannot be done. */
static size_t by_rsa(EVP_PKEY *key, crypt_init *begin, crypt *run, const uint8_t *in, size_t length,
                     uint8_t *out)
{
    EVP_PKEY_CTX *context = key == NULL || EVP_PKEY_get_size(key) > (int) MOST
                                ? NULL
                                : EVP_PKEY_CTX_new(key, NULL);
    size_t out_length = MOST;

    if (context == NULL || begin(context) <= 0
        || EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_OAEP_PADDING) <= 0
        || run(context, out, &out_length, in, length) <= 0)
        out_length = 0;
    EVP_PKEY_CTX_free(context);
    return out_length;
}

static void blend(uint8_t *secret, size_t length, const uint8_t *scramble)
{
    for (size_t i = 0; i < length; i++)
        secret[i] ^= scramble[i % MY_SCRAMBLE];
}

void my_sha2_forget(hr_my_more *more)
{
    if (more->secret == NULL)
        return;
    explicit_bzero(more->secret, more->secret_length);
    free(more->secret);
    more->secret = NULL;
}

static bool keep_secret(hr_my_more *more, const uint8_t *bytes, size_t length)
{
    my_sha2_forget(more);
    more->secret = malloc(length);
    if (more->secret == NULL)
        return false;
    memcpy(more->secret, bytes, length);
    more->secret_length = (uint16_t) length;
    return true;
}

static void send_packet(hr_session *session, hr_end to, uint8_t seq, const void *bytes,
                        size_t length)
{
    uint8_t *packet = hr_scratch(session, MY_HEADER + length);

    my_put_header(packet, length, seq);
    memcpy(packet + MY_HEADER, bytes, length);
    hr_emit(session, to, packet, MY_HEADER + length);
}

/* ── The exchange ─────────────────────────────────────────────────────────── */

static hr_next fail(hr_session *session, const char *text)
{
    return my_fail(session, (uint8_t) (session->my.client_seq + 1), 1045, "28000", text);
}

/* The server wants full authentication, and the client gets that request. */
void my_sha2_begin(hr_session *session)
{
    session->my.sha2 = session->side[HR_CLIENT].tls != NULL ? MY_SHA2_PASSWORD : MY_SHA2_REQUEST;
}

/* The server's key has come: the client's password goes to it, encrypted. */
hr_next my_sha2_key(hr_session *session, const uint8_t *packet, size_t length)
{
    hr_my *my = &session->my;
    BIO *in = length < 2 || packet[MY_HEADER] != 1
                  ? NULL
                  : BIO_new_mem_buf(packet + MY_HEADER + 1, (int) length - 1);
    EVP_PKEY *key = in == NULL ? NULL : PEM_read_bio_PUBKEY(in, NULL, NULL, NULL);
    uint8_t encrypted[MOST];
    size_t encrypted_length;

    blend(my->more->secret, my->more->secret_length, my->more->scramble);
    encrypted_length = by_rsa(key, EVP_PKEY_encrypt_init, EVP_PKEY_encrypt, my->more->secret,
                              my->more->secret_length, encrypted);
    my_sha2_forget(my->more);
    EVP_PKEY_free(key);
    BIO_free(in);
    if (encrypted_length == 0)
        return fail(session,
                    "headgate: the server's public key for caching_sha2_password cannot be used; "
                    "set the target's tls as the listener's");
    send_packet(session, HR_SERVER, (uint8_t) (packet[3] + 1), encrypted, encrypted_length);
    my->shift = (int8_t) (my->shift + 2); /* what the client has not seen */
    my->sha2 = MY_SHA2_NONE;
    return HR_MORE;
}

static hr_next request_key(hr_session *session, const uint8_t *payload, size_t length, uint8_t seq)
{
    if (my_more(session) == NULL || length == 0 || !keep_secret(session->my.more, payload, length))
        return fail(session, "headgate: the password is empty, or there is no memory for it");
    send_packet(session, HR_SERVER, (uint8_t) (seq + session->my.shift), "\x02", 1);
    session->my.client_turn = false;
    session->my.sha2 = MY_SHA2_KEY;
    return HR_MORE;
}

static hr_next lend_key(hr_session *session, const uint8_t *payload, size_t length, uint8_t seq)
{
    hr_my *my = &session->my;
    uint8_t text[MOST + 1] = {1};

    if (length != 1 || payload[0] != 2)
        return fail(session,
                    "headgate: the client has a public key of the server's, which cannot be used "
                    "through a proxy: let it ask for one (--get-server-public-key), or use TLS");
    pthread_once(&made_once, make_key);
    if (our_key_length == 0)
        return fail(session, "headgate: no key could be made for caching_sha2_password; use TLS");
    memcpy(text + 1, our_key_text, our_key_length);
    send_packet(session, HR_CLIENT, (uint8_t) (seq + 1), text, 1 + our_key_length);
    my->client_seq = my->seq = (uint8_t) (seq + 1);
    my->shift = (int8_t) (my->shift - 2); /* what the server has not seen */
    my->sha2 = MY_SHA2_SECRET;
    return HR_MORE;
}

static hr_next pass_password(hr_session *session, const uint8_t *payload, size_t length,
                             uint8_t seq)
{
    hr_my *my = &session->my;
    uint8_t password[MOST];
    size_t password_length = by_rsa(our_key, EVP_PKEY_decrypt_init, EVP_PKEY_decrypt, payload,
                                    length, password);

    if (password_length == 0 || my->more == NULL)
        return fail(session, "headgate: the encrypted password cannot be read");
    blend(password, password_length, my->more->scramble);
    send_packet(session, HR_SERVER, (uint8_t) (seq + my->shift), password, password_length);
    explicit_bzero(password, sizeof password);
    my->client_turn = false;
    my->sha2 = MY_SHA2_NONE;
    return HR_MORE;
}

size_t my_sha2_answer(hr_session *session, const uint8_t *bytes, size_t length, hr_next *next)
{
    hr_my *my = &session->my;
    uint32_t size = my_length(bytes);

    if (size > MOST) {
        *next = fail(session,
                     "headgate: a packet of caching_sha2_password is larger than any password");
        return 0;
    }
    if (length < MY_HEADER + size)
        return 0;
    my->client_seq = bytes[3];
    if (my->sha2 == MY_SHA2_PASSWORD)
        *next = request_key(session, bytes + MY_HEADER, size, bytes[3]);
    else if (my->sha2 == MY_SHA2_REQUEST)
        *next = lend_key(session, bytes + MY_HEADER, size, bytes[3]);
    else
        *next = pass_password(session, bytes + MY_HEADER, size, bytes[3]);
    return MY_HEADER + size;
}
