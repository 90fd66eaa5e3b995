/* test_engine_tls.c: TLS at either end of the real engine: lines, bulk, a handshake that fails. */
#include "engine_world.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <pthread.h>
#include <signal.h>

#define BULK_BYTES (8u << 20)

static char cert_file[] = "/tmp/headgate_cert_XXXXXX", key_file[] = "/tmp/headgate_key_XXXXXX";

static void make_certificate(void)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    FILE *file;

    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const unsigned char *) "localhost", -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    X509_set_pubkey(cert, key);
    assert(X509_sign(cert, key, EVP_sha256()) > 0);
    file = fdopen(mkstemp(cert_file), "w");
    assert(PEM_write_X509(file, cert) == 1 && fclose(file) == 0);
    file = fdopen(mkstemp(key_file), "w");
    assert(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1 && fclose(file) == 0);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static hr_tls_settings with_certificate(uint32_t mode)
{
    hr_tls_settings settings = {.mode = mode};

    snprintf(settings.cert, sizeof settings.cert, "%s", cert_file);
    snprintf(settings.key, sizeof settings.key, "%s", key_file);
    return settings;
}

static world *world_with_tls(void)
{
    hr_tls_settings listener = with_certificate(1);
    world *w = world_begin(usual_settings());
    char error[256] = "";

    assert(hr_listener_tls(w->relay, 0, &listener, error, sizeof error) == NULL);
    w->targets.tls_count = 1;
    w->targets.tls[0].mode = 2;
    w->targets.target[0].tls = 1;
    put_targets(w, 0);
    start(w);
    return w;
}

/* ── Blocking ends ────────────────────────────────────────────────────────── */

typedef struct end {
    SSL_CTX *context;
    SSL *ssl;
    int fd;
} end;

static end secure(int fd, bool accepts)
{
    end e = {.fd = fd, .context = SSL_CTX_new(accepts ? TLS_server_method() : TLS_client_method())};
    struct timeval no_limit = {
        .tv_sec = 0}; /* one with a limit is not restarted: OpenSSL gives up */

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &no_limit, sizeof no_limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &no_limit, sizeof no_limit);
    if (accepts) {
        assert(SSL_CTX_use_certificate_file(e.context, cert_file, SSL_FILETYPE_PEM) == 1);
        assert(SSL_CTX_use_PrivateKey_file(e.context, key_file, SSL_FILETYPE_PEM) == 1);
    }
    e.ssl = SSL_new(e.context);
    SSL_set_fd(e.ssl, fd);
    assert((accepts ? SSL_accept(e.ssl) : SSL_connect(e.ssl)) == 1);
    return e;
}

static void release(end *e)
{
    SSL_free(e->ssl);
    SSL_CTX_free(e->context);
    close(e->fd);
}

static void tls_say(end *e, const char *text)
{
    assert(SSL_write(e->ssl, text, (int) strlen(text)) == (int) strlen(text));
}

static void tls_expect(end *e, const char *text)
{
    char heard[256] = "";
    size_t length = 0;

    while (length < sizeof heard - 1 && SSL_read(e->ssl, heard + length, 1) == 1)
        if (heard[length++] == '\n')
            break;
    if (strcmp(heard, text) != 0)
        fprintf(stderr, "got \"%s\" instead of \"%s\"\n", heard, text);
    assert(strcmp(heard, text) == 0);
}

static void *accept_tls(void *argument)
{
    end *server = argument;

    *server = secure(server->fd, true);
    return NULL;
}

static void couple_tls(world *w, end *client, end *server)
{
    pthread_t accepting;
    char said;

    couple(w, &client->fd, &server->fd);
    say(client->fd, "secure\n");
    assert(recv(client->fd, &said, 1, 0) == 1 && said == 'S');
    *client = secure(client->fd, false);
    tls_expect(client, "client secured\n");
    pthread_create(&accepting, NULL, accept_tls, server);
    tls_say(client, "secure server\n");
    pthread_join(accepting, NULL);
    tls_expect(client, "server secured\n");
}

/* ── Tests ────────────────────────────────────────────────────────────────── */

static void test_lines_pass_between_two_secured_ends(void)
{
    world *w = world_with_tls();
    end client, server;

    couple_tls(w, &client, &server);
    tls_say(&client, "question\n");
    tls_expect(&server, "question\n");
    tls_say(&server, "answer\n");
    tls_expect(&client, "answer\n");
    assert(COUNT(w, tls_sessions) == 1);
    tls_say(&client, "quit\n");
    tls_expect(&client, "bye\n");
    tls_expect(&server, "");
    release(&client);
    release(&server);
    world_close(w);
}

static uint8_t pattern_at(size_t at)
{
    return (uint8_t) (at * 2654435761u >> 13 | 128u);
}

static void *send_bulk(void *argument)
{
    end *from = argument;
    static uint8_t bytes[10000];
    size_t at = 0, i;

    while (at < BULK_BYTES) {
        size_t some = BULK_BYTES - at < sizeof bytes ? BULK_BYTES - at : sizeof bytes;

        for (i = 0; i < some; i++)
            bytes[i] = pattern_at(at + i);
        assert(SSL_write(from->ssl, bytes, (int) some) == (int) some);
        at += some;
    }
    return NULL;
}

/* Bytes that TLS has decrypted already raise no event: all must come without another word. */
static void pass_bulk(end *from, end *to)
{
    static uint8_t bytes[30000];
    pthread_t sender;
    size_t at = 0;

    pthread_create(&sender, NULL, send_bulk, from);
    usleep(200000); /* until buffers and sockets are full */
    while (at < BULK_BYTES) {
        int came = SSL_read(to->ssl, bytes, sizeof bytes), i;

        assert(came > 0);
        for (i = 0; i < came; i++)
            assert(bytes[i] == pattern_at(at + (size_t) i));
        at += (size_t) came;
    }
    pthread_join(sender, NULL);
}

static void test_bulk_passes_whole_both_ways_though_its_reader_is_slow(void)
{
    world *w = world_with_tls();
    end client, server;

    couple_tls(w, &client, &server);
    tls_say(&client, "give\n");
    tls_expect(&server, "give\n");
    pass_bulk(&server, &client);
    pass_bulk(&client, &server);
    EVENTUALLY(COUNT(w, buffers_used_bytes) == 0);
    release(&client);
    release(&server);
    world_close(w);
}

static void test_what_is_decrypted_while_held_is_not_forgotten(void)
{
    world *w = world_with_tls();
    end client, server;

    couple_tls(w, &client, &server);
    tls_say(&client, "hold\n");
    EVENTUALLY(held_session != NULL);
    tls_say(&client, "second\n");
    tls_say(&client, "third\n");
    usleep(20000);
    gate_open = true;
    hr_stir(w->relay);
    tls_expect(&server, "hold\n");
    tls_expect(&server, "second\n");
    tls_expect(&server, "third\n");
    release(&client);
    release(&server);
    world_close(w);
}

/* Fills what lies between, until some is unsent in the relay. How many bytes. */
static size_t fill(world *w, int client)
{
    static char line[1024] = "tell ";
    size_t all = 0;

    memset(line + 5, 'x', sizeof line - 6);
    line[sizeof line - 1] = '\n';
    do {
        ssize_t sent = send(client, line, sizeof line, MSG_NOSIGNAL);

        assert(sent == sizeof line);
        all += sizeof line - 5;
        if (all % 65 == 0)
            usleep(200);
    } while (COUNT(w, buffers_used_bytes) < 40000);
    return all;
}

static void expect_bytes(int fd, size_t length)
{
    static char bytes[65536];

    while (length > 0) {
        ssize_t came = recv(fd, bytes, length < sizeof bytes ? length : sizeof bytes, 0);

        assert(came > 0);
        length -= (size_t) came;
    }
}

/* Its first words come while it is not read from, before it has taken the answer that TLS may begin:
 * the loop has looked away by then, and must look again. */
static void test_a_handshake_that_begins_before_its_answer_was_read_goes_on(void)
{
    world *w = world_with_tls();
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(context);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    char hello[4096], said;
    end client = {.context = context, .ssl = ssl}, server;
    size_t filled;
    int length;

    SSL_set_bio(ssl, in, out);
    assert(SSL_connect(ssl) == -1); /* has said hello, and wants an answer */
    length = BIO_read(out, hello, sizeof hello);
    assert(length > 0);
    couple(w, &client.fd, &server.fd);
    filled = fill(w, client.fd);
    say(client.fd, "secure\n");
    usleep(20000);
    assert(send(client.fd, hello, (size_t) length, MSG_NOSIGNAL) == length);
    usleep(20000);
    expect_bytes(client.fd, filled);
    assert(recv(client.fd, &said, 1, 0) == 1 && said == 'S');
    SSL_set_fd(ssl, client.fd);
    assert(SSL_connect(ssl) == 1);
    tls_expect(&client, "client secured\n");
    release(&client);
    close(server.fd);
    world_close(w);
}

static void test_plain_text_instead_of_a_handshake_ends_that_session_alone(void)
{
    world *w = world_with_tls();
    int client, server, other, other_server;
    char said;

    couple(w, &other, &other_server);
    couple(w, &client, &server);
    say(client, "secure\nthis is no handshake at all, not even remotely one\n");
    assert(recv(client, &said, 1, 0) == 1 && said == 'S');
    EVENTUALLY(losses[HR_LOST_TLS] == 1);
    expect_end(server);
    say(other, "x\n");
    expect(other_server, "x\n");
    close(client);
    close(server);
    close(other);
    close(other_server);
    world_close(w);
}

static void test_a_server_that_breaks_off_the_handshake_is_told_to_the_client(void)
{
    world *w = world_with_tls();
    int client, server;
    char said;

    couple(w, &client, &server);
    say(client, "secure server\n");
    assert(recv(server, &said, 1, 0) == 1); /* the first byte of the relay's hello */
    close(server);
    expect_begin(client, "lost 9 TLS with the server: ");
    close(client);
    world_close(w);
}

static void test_all(void)
{
    test_lines_pass_between_two_secured_ends();
    test_bulk_passes_whole_both_ways_though_its_reader_is_slow();
    test_what_is_decrypted_while_held_is_not_forgotten();
    test_a_handshake_that_begins_before_its_answer_was_read_goes_on();
    test_plain_text_instead_of_a_handshake_ends_that_session_alone();
    test_a_server_that_breaks_off_the_handshake_is_told_to_the_client();
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    alarm(240); /* its ends wait without a limit of their own */
    make_certificate();
    test_all();
    unlink(cert_file);
    unlink(key_file);
    return 0;
}
