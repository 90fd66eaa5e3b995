/* Both sides of tls.c, against each other over a socket pair: certificates, names, faults in words. */
#include <assert.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "inside.h"

/* ── Certificates ─────────────────────────────────────────────────────────── */

typedef struct issued {
    EVP_PKEY *key;
    X509 *cert;
    char cert_path[128], key_path[128];
} issued;

static char directory[] = "/tmp/test_tls.XXXXXX";
static issued authority, stranger, server, by_stranger, client;

static void extend(X509 *cert, int what, const char *value)
{
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, NULL, what, value);

    assert(extension != NULL && X509_add_ext(cert, extension, -1) == 1);
    X509_EXTENSION_free(extension);
}

static void write_pem(issued *one, const char *name)
{
    FILE *file;

    snprintf(one->cert_path, sizeof one->cert_path, "%s/%s.crt", directory, name);
    snprintf(one->key_path, sizeof one->key_path, "%s/%s.key", directory, name);
    file = fopen(one->cert_path, "w");
    assert(file != NULL && PEM_write_X509(file, one->cert) == 1);
    fclose(file);
    file = fopen(one->key_path, "w");
    assert(file != NULL && PEM_write_PrivateKey(file, one->key, NULL, NULL, 0, NULL, NULL) == 1);
    fclose(file);
}

static void issue(issued *one, const char *name, const char *names, const issued *by)
{
    static long serial = 1;
    X509_NAME *subject;

    one->key = EVP_EC_gen("P-256");
    one->cert = X509_new();
    X509_set_version(one->cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(one->cert), serial++);
    X509_gmtime_adj(X509_getm_notBefore(one->cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(one->cert), 3600);
    subject = X509_get_subject_name(one->cert);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, (const unsigned char *) name, -1, -1,
                               0);
    X509_set_issuer_name(one->cert, by == NULL ? subject : X509_get_subject_name(by->cert));
    X509_set_pubkey(one->cert, one->key);
    extend(one->cert, NID_basic_constraints, by == NULL ? "critical,CA:TRUE" : "CA:FALSE");
    if (names != NULL)
        extend(one->cert, NID_subject_alt_name, names);
    assert(X509_sign(one->cert, by == NULL ? one->key : by->key, EVP_sha256()) > 0);
    write_pem(one, name);
}

static void issue_all(void)
{
    assert(mkdtemp(directory) != NULL);
    issue(&authority, "authority", NULL, NULL);
    issue(&stranger, "stranger", NULL, NULL);
    issue(&server, "server", "DNS:db.example,IP:127.0.0.1", &authority);
    issue(&by_stranger, "by_stranger", "DNS:db.example", &stranger);
    issue(&client, "client", NULL, &authority);
}

static void forget_all(void)
{
    issued *all[] = {&authority, &stranger, &server, &by_stranger, &client};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        unlink(all[i]->cert_path);
        unlink(all[i]->key_path);
        X509_free(all[i]->cert);
        EVP_PKEY_free(all[i]->key);
    }
    rmdir(directory);
}

/* ── Two ends ─────────────────────────────────────────────────────────────── */

static hr_tls_settings listener_of(const issued *one)
{
    hr_tls_settings settings = {.mode = 2};

    snprintf(settings.cert, sizeof settings.cert, "%s", one->cert_path);
    snprintf(settings.key, sizeof settings.key, "%s", one->key_path);
    return settings;
}

static hr_tls_settings target_of(uint32_t mode, const char *name)
{
    hr_tls_settings settings = {.mode = mode};

    snprintf(settings.ca, sizeof settings.ca, "%s", authority.cert_path);
    snprintf(settings.name, sizeof settings.name, "%s", name);
    return settings;
}

static hr_tls *must_open(const hr_tls_settings *settings, bool for_listener)
{
    char error[512];
    hr_tls *tls = hr_tls_open(settings, for_listener, HR_PROTOCOL_POSTGRES, error, sizeof error);

    if (tls == NULL)
        fprintf(stderr, "%s\n", error);
    assert(tls != NULL && error[0] == '\0');
    return tls;
}

typedef struct two {
    int fd[2];
    hr_tls_end *end[2]; /* 0: the listener's; 1: the target's */
} two;

/* The contexts go at once: ends keep what they need of them. */
static two begin_two(const hr_tls_settings *listener, const hr_tls_settings *target)
{
    two t;
    hr_tls *tls[2] = {must_open(listener, true), must_open(target, false)};

    assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, t.fd) == 0);
    for (int i = 0; i < 2; i++) {
        t.end[i] = hr_tls_begin(tls[i], t.fd[i]);
        assert(t.end[i] != NULL);
        hr_tls_drop(tls[i]);
    }
    return t;
}

static void end_two(two *t)
{
    for (int i = 0; i < 2; i++) {
        hr_tls_end_free(t->end[i]);
        if (t->fd[i] >= 0)
            close(t->fd[i]);
    }
}

/* Until both are done, or one has failed. True: both are. */
static bool shake_both(two *t)
{
    int said[2] = {HR_TLS_READ, HR_TLS_READ};

    for (int round = 0; round < 50; round++)
        for (int i = 0; i < 2; i++) {
            if (said[i] != HR_TLS_DONE)
                said[i] = hr_tls_shake(t->end[i]);
            if (said[0] == HR_TLS_FAILED || said[1] == HR_TLS_FAILED)
                return false;
            if (said[0] == HR_TLS_DONE && said[1] == HR_TLS_DONE)
                return true;
        }
    return false;
}

static ssize_t read_now(hr_tls_end *end, void *bytes, size_t length)
{
    hr_tls_readable(end);
    return hr_tls_read(end, bytes, length);
}

static bool says(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", text, part);
    return strstr(text, part) != NULL;
}

/* ── What works ───────────────────────────────────────────────────────────── */

static void bytes_go_both_ways(void)
{
    hr_tls_settings listener = listener_of(&server), target = target_of(4, "db.example");
    two t = begin_two(&listener, &target);
    char got[64];

    assert(shake_both(&t));
    assert(read_now(t.end[0], got, sizeof got) == HR_TLS_READ);
    assert(hr_tls_write(t.end[1], "select 1", 8) == 8);
    assert(read_now(t.end[0], got, 3) == 3 && memcmp(got, "sel", 3) == 0);
    assert(read_now(t.end[0], got, sizeof got) == 5);
    assert(hr_tls_write(t.end[0], "1", 1) == 1);
    assert(read_now(t.end[1], got, sizeof got) == 1 && got[0] == '1');
    hr_tls_end_free(t.end[1]); /* says goodbye */
    t.end[1] = NULL;
    assert(read_now(t.end[0], got, sizeof got) == HR_TLS_CLOSED);
    end_two(&t);
}

/* More than a socket takes: what is left is written later, from another place in memory. */
static void a_socket_that_is_full_is_waited_for(void)
{
    hr_tls_settings listener = listener_of(&server), target = target_of(2, "");
    two t = begin_two(&listener, &target);
    size_t length = 4 << 20, written = 0, got = 0;
    uint8_t *sent = malloc(length), *copy = malloc(length), *received = malloc(length);
    bool was_full = false;

    assert(shake_both(&t));
    for (size_t i = 0; i < length; i++)
        sent[i] = copy[i] = (uint8_t) (i * 31 >> 3);
    while (got < length) {
        ssize_t now = 1;

        while (written < length && now > 0) {
            now = hr_tls_write(t.end[0], (was_full ? copy : sent) + written, length - written);
            assert(now > 0 || now == HR_TLS_WRITE);
            written += now > 0 ? (size_t) now : 0;
        }
        was_full |= now == HR_TLS_WRITE;
        now = read_now(t.end[1], received + got, length - got);
        assert(now > 0 || now == HR_TLS_READ);
        if (now > 0)
            got += (size_t) now;
    }
    assert(was_full && memcmp(sent, received, length) == 0);
    free(sent);
    free(copy);
    free(received);
    end_two(&t);
}

/* A read gives one record at most. libpq has room for 8 KiB, and does not see what it leaves (P1). */
static void no_record_is_longer_than_postgres_makes_them(void)
{
    static uint8_t much[100000], got[sizeof much];
    hr_tls_settings listener = listener_of(&server), target = target_of(2, "");
    two t = begin_two(&listener, &target);
    ssize_t written = 0, came, all = 0;

    assert(shake_both(&t));
    while (written < (ssize_t) sizeof much || all < written) {
        came = written < (ssize_t) sizeof much
                   ? hr_tls_write(t.end[0], much + written, sizeof much - (size_t) written)
                   : 0;
        written += came > 0 ? came : 0;
        came = read_now(t.end[1], got, sizeof got);
        assert(came <= 8192);
        all += came > 0 ? came : 0;
    }
    assert(all == sizeof much);
    end_two(&t);
}

/* Direct TLS: the engine has read the first bytes before it knew. */
static void a_handshake_may_begin_in_bytes_read_before(void)
{
    for (size_t some = 1; some < 400; some += 57) {
        hr_tls_settings listener = listener_of(&server), target = target_of(3, "db.example");
        two t = begin_two(&listener, &target);
        uint8_t early[512];
        ssize_t length;

        assert(hr_tls_shake(t.end[1]) == HR_TLS_READ);
        length = recv(t.fd[0], early, some, 0);
        assert(length > 0);
        assert(hr_tls_unread(t.end[0], early, (size_t) length));
        assert(shake_both(&t));
        end_two(&t);
    }
}

static void names_and_addresses_are_checked(void)
{
    static const struct {
        uint32_t mode;
        const char *name;
        bool works;
    } rows[] = {{1, "", true},           {2, "elsewhere", true},    {3, "elsewhere", true},
                {4, "db.example", true}, {4, "elsewhere", false},   {4, "127.0.0.1", true},
                {4, "127.0.0.2", false}, {4, "x.db.example", false}};

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        hr_tls_settings listener = listener_of(&server),
                        target = target_of(rows[i].mode, rows[i].name);
        two t = begin_two(&listener, &target);

        assert(shake_both(&t) == rows[i].works);
        if (!rows[i].works) {
            assert(says(hr_tls_fault(t.end[1]), "server's certificate is not accepted"));
            assert(says(hr_tls_fault(t.end[1]), rows[i].name));
        }
        end_two(&t);
    }
}

static void a_strange_authority_is_rejected(void)
{
    hr_tls_settings listener = listener_of(&by_stranger), target = target_of(3, "db.example");
    two t = begin_two(&listener, &target);

    assert(!shake_both(&t));
    assert(says(hr_tls_fault(t.end[1]), "look at the target's CA file"));
    assert(read_now(t.end[1], &t, 1) == HR_TLS_FAILED); /* and stays so */
    assert(hr_tls_shake(t.end[0]) == HR_TLS_FAILED);
    assert(says(hr_tls_fault(t.end[0]), "client has rejected the TLS handshake"));
    end_two(&t);
}

static void a_client_certificate_may_be_demanded(void)
{
    hr_tls_settings listener = listener_of(&server), target = target_of(3, "");
    two t;
    char got[8];

    snprintf(listener.ca, sizeof listener.ca, "%s", authority.cert_path);
    t = begin_two(&listener, &target);
    assert(!shake_both(&t) || read_now(t.end[0], got, sizeof got) == HR_TLS_FAILED);
    assert(says(hr_tls_fault(t.end[0]), "client has sent no certificate"));
    end_two(&t);
    snprintf(target.cert, sizeof target.cert, "%s", client.cert_path);
    snprintf(target.key, sizeof target.key, "%s", client.key_path);
    t = begin_two(&listener, &target);
    assert(shake_both(&t));
    end_two(&t);
    snprintf(target.cert, sizeof target.cert, "%s", by_stranger.cert_path);
    snprintf(target.key, sizeof target.key, "%s", by_stranger.key_path);
    t = begin_two(&listener, &target);
    assert(!shake_both(&t));
    assert(says(hr_tls_fault(t.end[0]), "client's certificate is not accepted"));
    end_two(&t);
}

/* ── What does not ────────────────────────────────────────────────────────── */

static void plain_text_is_no_handshake(void)
{
    hr_tls_settings listener = listener_of(&server), target = target_of(2, "");
    two t = begin_two(&listener, &target);

    assert(send(t.fd[1], "\0\0\0\x08\x04\xd2\x16\x2f plain text", 19, 0) == 19);
    assert(hr_tls_shake(t.end[0]) == HR_TLS_FAILED);
    assert(says(hr_tls_fault(t.end[0]), "client"));
    end_two(&t);
}

static void a_peer_that_hangs_up_is_a_fault(void)
{
    hr_tls_settings listener = listener_of(&server), target = target_of(2, "");
    two t = begin_two(&listener, &target);

    close(t.fd[0]);
    t.fd[0] = -1;
    assert(hr_tls_shake(t.end[1]) == HR_TLS_FAILED);
    assert(says(hr_tls_fault(t.end[1]), "the server"));
    hr_tls_end_free(t.end[1]);
    t.end[1] = NULL;
    end_two(&t);
}

static SSL *openssl_client(int fd, int most, const char *alpn, SSL_CTX **context)
{
    SSL *ssl;

    *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_max_proto_version(*context, most);
    SSL_CTX_set_security_level(*context, 0);
    ssl = SSL_new(*context);
    SSL_set_fd(ssl, fd);
    if (alpn != NULL)
        SSL_set_alpn_protos(ssl, (const unsigned char *) alpn, (unsigned) strlen(alpn));
    return ssl;
}

/* Against OpenSSL itself: versions and ALPN as others speak them. */
static bool shakes_with(int most, const char *alpn, char chosen[32])
{
    hr_tls_settings listener = listener_of(&server), target = target_of(2, "");
    two t = begin_two(&listener, &target);
    SSL_CTX *context;
    SSL *ssl = openssl_client(t.fd[1], most, alpn, &context);
    const unsigned char *name = NULL;
    unsigned length = 0;
    int ours = HR_TLS_READ, theirs = 0;

    for (int i = 0; i < 20 && ours != HR_TLS_FAILED && (ours != HR_TLS_DONE || theirs != 1); i++) {
        theirs = theirs == 1 ? 1 : SSL_connect(ssl);
        ours = ours == HR_TLS_DONE ? ours : hr_tls_shake(t.end[0]);
    }
    SSL_get0_alpn_selected(ssl, &name, &length);
    if (chosen != NULL)
        snprintf(chosen, 32, "%.*s", (int) length,
                 name == NULL ? (const unsigned char *) "" : name);
    SSL_free(ssl);
    SSL_CTX_free(context);
    end_two(&t);
    return ours == HR_TLS_DONE && theirs == 1;
}

static void versions_and_protocols_are_chosen(void)
{
    char chosen[32];

    assert(shakes_with(TLS1_3_VERSION, NULL, NULL));
    assert(shakes_with(TLS1_2_VERSION, NULL, NULL));
    assert(!shakes_with(TLS1_1_VERSION, NULL, NULL));
    assert(shakes_with(TLS1_3_VERSION, "\012postgresql", chosen)
           && strcmp(chosen, "postgresql") == 0);
    assert(shakes_with(TLS1_3_VERSION, "\002h2\012postgresql", chosen)
           && strcmp(chosen, "postgresql") == 0);
    assert(!shakes_with(TLS1_3_VERSION, "\002h2", NULL));
}

/* ── Settings that are wrong ──────────────────────────────────────────────── */

static bool rejects(hr_tls_settings settings, bool for_listener, const char *part, const char *file)
{
    char error[512];
    hr_tls *tls = hr_tls_open(&settings, for_listener, HR_PROTOCOL_POSTGRES, error, sizeof error);

    assert(tls == NULL);
    return says(error, part) && says(error, file);
}

static void a_fault_names_its_file(void)
{
    hr_tls_settings good = listener_of(&server), bad = good;
    char locked[160];
    FILE *file;

    strcpy(bad.cert, "/nowhere/x.crt");
    assert(rejects(bad, true, "cannot be read: No such file", "/nowhere/x.crt"));
    bad = good;
    snprintf(bad.key, sizeof bad.key, "%s", client.key_path);
    assert(rejects(bad, true, "does not fit the certificate", client.key_path));
    bad = good;
    snprintf(bad.cert, sizeof bad.cert, "%s", server.key_path);
    assert(rejects(bad, true, "holds no usable certificate", server.key_path));
    bad = good;
    bad.key[0] = '\0';
    assert(rejects(bad, true, "needs its key", server.cert_path));
    bad = target_of(4, "");
    assert(rejects(bad, false, "verify-full", "name"));
    bad = target_of(3, "");
    snprintf(bad.ca, sizeof bad.ca, "%s", server.key_path);
    assert(rejects(bad, false, "CA file", server.key_path));
    bad = target_of(9, "");
    assert(rejects(bad, false, "mode 9", ""));
    snprintf(locked, sizeof locked, "%s/locked.key", directory);
    file = fopen(locked, "w");
    PEM_write_PrivateKey(file, server.key, EVP_aes_128_cbc(), (const unsigned char *) "secret", 6,
                         NULL, NULL);
    fclose(file);
    bad = good;
    snprintf(bad.key, sizeof bad.key, "%s", locked);
    assert(rejects(bad, true, "is protected by a password", locked));
    unlink(locked);
}

int main(void)
{
    issue_all();
    bytes_go_both_ways();
    a_socket_that_is_full_is_waited_for();
    no_record_is_longer_than_postgres_makes_them();
    a_handshake_may_begin_in_bytes_read_before();
    names_and_addresses_are_checked();
    a_strange_authority_is_rejected();
    a_client_certificate_may_be_demanded();
    plain_text_is_no_handshake();
    a_peer_that_hangs_up_is_a_fault();
    versions_and_protocols_are_chosen();
    a_fault_names_its_file();
    forget_all();
    printf("test_tls: ok\n");
    return 0;
}
