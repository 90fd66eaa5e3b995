/*
 * tls.c: certificates, handshakes, encrypted reads and writes, by OpenSSL 3.
 *
 *   settings ──hr_tls_open──► hr_tls (one per listener or target, counted, replaced while it runs)
 *                               └──hr_tls_begin──► hr_tls_end (one per connection)
 *
 * Small: buffers are given back between records, and no sessions are kept for resumption; tickets
 * cost nothing here, and are off all the same, for a database's sessions are long.
 *
 * What fails is reported in words: which file, what is wrong with it, what to look at. No key, no
 * password and nothing that a peer has sent gets into them but its certificate's own fault.
 */
#include "inside.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OFF = 0, ALLOW = 1, REQUIRE = 2 };                            /* a listener's modes */
enum { PREFER = 1, REQUIRE_SERVER = 2, VERIFY_CA = 3, VERIFY_FULL = 4 }; /* a target's */

struct hr_tls {
    _Atomic uint32_t users;
    SSL_CTX *context;
    bool for_listener;
    bool named;     /* the peer must have this name */
    bool is_address;
    char name[256];
};

struct hr_tls_end {
    hr_tls *tls;
    SSL *ssl;
    int fd;
    uint8_t *unread;   /* was read from the socket by others */
    size_t unread_at, unread_length;
    bool
        drained; /* the socket had less than there was room for: the next read waits until more has come */
    int socket_error; /* errno of the last read or write that failed */
    char fault[256];
};

/* ── Faults in words ──────────────────────────────────────────────────────── */

static void say(char *error, size_t length, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(char *error, size_t length, const char *format, ...)
{
    va_list rest;

    if (length == 0)
        return;
    va_start(rest, format);
    vsnprintf(error, length, format, rest);
    va_end(rest);
}

/* OpenSSL's own last words, without its codes; its queue is empty afterwards. */
static const char *last_words(void)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code == 0 ? NULL : ERR_reason_error_string(code);

    if (code != 0 && ERR_SYSTEM_ERROR(code))
        reason = strerror(ERR_GET_REASON(code));
    ERR_clear_error();
    return reason == NULL ? "OpenSSL gives no reason" : reason;
}

/* ── Contexts ─────────────────────────────────────────────────────────────── */

static bool readable(const char *path, const char *what, char *error, size_t length)
{
    FILE *file = fopen(path, "rb");

    if (file == NULL) {
        say(error, length,
            "%s file \"%s\" cannot be read: %s; look at the path and its permissions", what, path,
            strerror(errno));
        return false;
    }
    fclose(file);
    return true;
}

/* Never reads a terminal: a key with a password is a fault, not a prompt that nobody sees. */
static int no_password(char *out, int room, int writing, void *user)
{
    (void) out, (void) room, (void) writing;
    *(bool *) user = true;
    return -1;
}

static bool use_certificate(SSL_CTX *context, const hr_tls_settings *settings, char *error,
                            size_t length)
{
    bool wants_password = false;

    if (!readable(settings->cert, "certificate", error, length)
        || !readable(settings->key, "key", error, length))
        return false;
    if (SSL_CTX_use_certificate_chain_file(context, settings->cert) != 1) {
        say(error, length,
            "certificate file \"%s\" holds no usable certificate: %s; it must be PEM, "
            "the server's own first, then its chain",
            settings->cert, last_words());
        return false;
    }
    SSL_CTX_set_default_passwd_cb(context, no_password);
    SSL_CTX_set_default_passwd_cb_userdata(context, &wants_password);
    if (SSL_CTX_use_PrivateKey_file(context, settings->key, SSL_FILETYPE_PEM) != 1) {
        const char *why = last_words();

        SSL_CTX_set_default_passwd_cb_userdata(context, NULL);
        if (wants_password)
            say(error, length,
                "key file \"%s\" is protected by a password; store it without one, "
                "readable by the proxy's user alone",
                settings->key);
        else
            say(error, length,
                "key file \"%s\" does not fit the certificate \"%s\" or is no PEM key: "
                "%s",
                settings->key, settings->cert, why);
        return false;
    }
    SSL_CTX_set_default_passwd_cb_userdata(context, NULL);
    if (SSL_CTX_check_private_key(context) != 1) {
        say(error, length, "key file \"%s\" is not the key of certificate \"%s\": %s",
            settings->key, settings->cert, last_words());
        return false;
    }
    return true;
}

static bool use_authorities(SSL_CTX *context, const hr_tls_settings *settings, bool for_listener,
                            char *error, size_t length)
{
    if (!readable(settings->ca, "CA", error, length))
        return false;
    if (SSL_CTX_load_verify_locations(context, settings->ca, NULL) != 1) {
        say(error, length, "CA file \"%s\" holds no usable certificates: %s; it must be PEM",
            settings->ca, last_words());
        return false;
    }
    if (for_listener)
        SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(settings->ca));
    ERR_clear_error();
    return true;
}

/* A client that says which protocols it speaks must speak this one; one that does not say passes:
 * libpq says so only for direct TLS, where the protocol demands it. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_length,
                           const unsigned char *offered, unsigned int offered_length, void *user)
{
    static const unsigned char ours[] = "\012postgresql";
    unsigned char *chosen;

    (void) ssl, (void) user;
    if (SSL_select_next_proto(&chosen, out_length, ours, sizeof ours - 1, offered, offered_length)
        != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

static bool set_up_listener(SSL_CTX *context, const hr_tls_settings *settings, uint32_t protocol,
                            char *error, size_t length)
{
    static const unsigned char about[] = "headgate";

    if (settings->cert[0] == '\0' || settings->key[0] == '\0') {
        say(error, length, "a listener with TLS needs a certificate and a key: tls_cert, tls_key");
        return false;
    }
    if (!use_certificate(context, settings, error, length))
        return false;
    if (settings->ca[0] != '\0') {
        if (!use_authorities(context, settings, true, error, length))
            return false;
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    }
    SSL_CTX_set_session_id_context(context, about, sizeof about - 1);
    if (protocol == HR_PROTOCOL_POSTGRES)
        SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    return true;
}

static bool set_up_target(SSL_CTX *context, const hr_tls_settings *settings, char *error,
                          size_t length)
{
    if (settings->cert[0] != '\0' && !use_certificate(context, settings, error, length))
        return false;
    if (settings->mode < VERIFY_CA) {
        SSL_CTX_set_verify(context, SSL_VERIFY_NONE, NULL);
        return true;
    }
    if (settings->mode == VERIFY_FULL && settings->name[0] == '\0') {
        say(error, length, "verify-full needs the name that the server's certificate must have");
        return false;
    }
    if (settings->ca[0] != '\0' && !use_authorities(context, settings, false, error, length))
        return false;
    if (settings->ca[0] == '\0' && SSL_CTX_set_default_verify_paths(context) != 1) {
        say(error, length, "the system's CA certificates cannot be read (%s); name a CA file",
            last_words());
        return false;
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    return true;
}

static SSL_CTX *new_context(bool for_listener)
{
    SSL_CTX *context = SSL_CTX_new(for_listener ? TLS_server_method() : TLS_client_method());

    if (context == NULL)
        return NULL;
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE
                                  | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(context, 1); /* a record's head and body with one recv */
    /* A peer must not make the relay work by asking for new keys, again and again. A peer that
     * closes without saying so is a peer that has closed: the protocols have ends of their own. */
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET
                                     | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_max_send_fragment(context, HR_RECORD_BYTES);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(context, 0);
    return context;
}

static void keep_name(hr_tls *tls, const hr_tls_settings *settings)
{
    unsigned char address[16];

    snprintf(tls->name, sizeof tls->name, "%.255s", settings->name);
    tls->is_address = inet_pton(AF_INET, tls->name, address) == 1
                      || inet_pton(AF_INET6, tls->name, address) == 1;
    tls->named = !tls->for_listener && settings->mode == VERIFY_FULL;
}

static bool ended(const char *field, size_t room)
{
    return memchr(field, '\0', room) != NULL;
}

static bool sound(const hr_tls_settings *settings, bool for_listener, char *error, size_t length)
{
    uint32_t most = for_listener ? REQUIRE : VERIFY_FULL;

    if (settings->mode == OFF || settings->mode > most) {
        say(error, length, "TLS mode %u is none of 1 to %u", settings->mode, most);
        return false;
    }
    if (!ended(settings->cert, sizeof settings->cert) || !ended(settings->key, sizeof settings->key)
        || !ended(settings->ca, sizeof settings->ca)
        || !ended(settings->name, sizeof settings->name)) {
        say(error, length, "a TLS setting is longer than its field");
        return false;
    }
    if ((settings->cert[0] == '\0') != (settings->key[0] == '\0')) {
        say(error, length,
            "a certificate needs its key, and a key its certificate: only \"%s\" is set",
            settings->cert[0] == '\0' ? settings->key : settings->cert);
        return false;
    }
    return true;
}

hr_tls *hr_tls_open(const hr_tls_settings *settings, bool for_listener, uint32_t protocol,
                    char *error, size_t error_length)
{
    hr_tls *tls;
    bool fine;

    say(error, error_length, "%s", "");
    if (!sound(settings, for_listener, error, error_length))
        return NULL;
    ERR_clear_error();
    tls = calloc(1, sizeof *tls);
    if (tls == NULL || (tls->context = new_context(for_listener)) == NULL) {
        say(error, error_length, "no memory for a TLS context: %s", last_words());
        free(tls);
        return NULL;
    }
    tls->users = 1;
    tls->for_listener = for_listener;
    keep_name(tls, settings);
    fine = for_listener ? set_up_listener(tls->context, settings, protocol, error, error_length)
                        : set_up_target(tls->context, settings, error, error_length);
    if (!fine) {
        hr_tls_drop(tls);
        return NULL;
    }
    return tls;
}

hr_tls *hr_tls_share(hr_tls *tls)
{
    if (tls != NULL)
        atomic_fetch_add_explicit(&tls->users, 1, memory_order_relaxed);
    return tls;
}

void hr_tls_drop(hr_tls *tls)
{
    if (tls == NULL || atomic_fetch_sub_explicit(&tls->users, 1, memory_order_acq_rel) != 1)
        return;
    SSL_CTX_free(tls->context);
    free(tls);
}

/* ── The socket under it ──────────────────────────────────────────────────── */

/* OpenSSL's own socket BIO would raise SIGPIPE, and knows no bytes that were read before. */
static int socket_read(BIO *bio, char *out, int room)
{
    hr_tls_end *end = BIO_get_data(bio);
    size_t left = end->unread_length - end->unread_at;
    ssize_t got;

    BIO_clear_retry_flags(bio);
    if (left > 0) {
        size_t taken = left < (size_t) room ? left : (size_t) room;

        memcpy(out, end->unread + end->unread_at, taken);
        end->unread_at += taken;
        if (end->unread_at == end->unread_length) {
            free(end->unread);
            end->unread = NULL;
            end->unread_at = end->unread_length = 0;
        }
        return (int) taken;
    }
    if (end->drained) {
        BIO_set_retry_read(bio);
        return -1;
    }
    do
        got = recv(end->fd, out, (size_t) room, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_read(bio);
    else if (got < 0)
        end->socket_error = errno;
    end->drained = got > 0 && got < room;
    return (int) got;
}

static int socket_write(BIO *bio, const char *bytes, int length)
{
    hr_tls_end *end = BIO_get_data(bio);
    ssize_t sent;

    BIO_clear_retry_flags(bio);
    do
        sent = send(end->fd, bytes, (size_t) length, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        BIO_set_retry_write(bio);
    else if (sent < 0)
        end->socket_error = errno;
    return (int) sent;
}

static long socket_control(BIO *bio, int command, long number, void *pointer)
{
    (void) bio, (void) number, (void) pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

static BIO_METHOD *socket_method;

static void make_method(void)
{
    BIO_METHOD *made = BIO_meth_new(
        BIO_get_new_index() | BIO_TYPE_SOURCE_SINK | BIO_TYPE_DESCRIPTOR, "relay socket");

    if (made == NULL)
        return;
    BIO_meth_set_read(made, socket_read);
    BIO_meth_set_write(made, socket_write);
    BIO_meth_set_ctrl(made, socket_control);
    socket_method = made;
}

static BIO *new_bio(hr_tls_end *end)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    BIO *bio;

    pthread_once(&once, make_method);
    bio = socket_method == NULL ? NULL : BIO_new(socket_method);
    if (bio == NULL)
        return NULL;
    BIO_set_data(bio, end);
    BIO_set_init(bio, 1);
    return bio;
}

/* ── One connection ───────────────────────────────────────────────────────── */

static bool expect_name(const hr_tls *tls, SSL *ssl)
{
    if (tls->for_listener || tls->name[0] == '\0')
        return true;
    /* An address is no server name (RFC 6066). */
    if (!tls->is_address && SSL_set_tlsext_host_name(ssl, tls->name) != 1)
        return false;
    if (!tls->named)
        return true;
    if (tls->is_address)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), tls->name) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, tls->name) == 1;
}

hr_tls_end *hr_tls_begin(hr_tls *tls, int fd)
{
    hr_tls_end *end = calloc(1, sizeof *end);
    BIO *bio;

    if (end == NULL)
        return NULL;
    end->fd = fd;
    end->ssl = SSL_new(tls->context);
    bio = end->ssl == NULL ? NULL : new_bio(end);
    if (bio == NULL) {
        SSL_free(end->ssl);
        free(end);
        ERR_clear_error();
        return NULL;
    }
    SSL_set_bio(end->ssl, bio, bio);
    end->tls = hr_tls_share(tls);
    if (!expect_name(tls, end->ssl)) {
        hr_tls_end_free(end);
        ERR_clear_error();
        return NULL;
    }
    if (tls->for_listener)
        SSL_set_accept_state(end->ssl);
    else
        SSL_set_connect_state(end->ssl);
    return end;
}

/* Says goodbye if that goes at once, while the descriptor is still open. */
void hr_tls_end_free(hr_tls_end *end)
{
    if (end == NULL)
        return;
    if (end->fault[0] == '\0' && SSL_is_init_finished(end->ssl))
        (void) SSL_shutdown(end->ssl);
    ERR_clear_error();
    SSL_free(end->ssl);
    hr_tls_drop(end->tls);
    free(end->unread);
    free(end);
}

bool hr_tls_unread(hr_tls_end *end, const uint8_t *bytes, size_t length)
{
    size_t left = end->unread_length - end->unread_at;
    uint8_t *all;

    if (length == 0)
        return true;
    all = malloc(left + length);
    if (all == NULL)
        return false;
    if (left > 0)
        memcpy(all, end->unread + end->unread_at, left);
    memcpy(all + left, bytes, length);
    free(end->unread);
    end->unread = all;
    end->unread_at = 0;
    end->unread_length = left + length;
    return true;
}

void hr_tls_readable(hr_tls_end *end)
{
    end->drained = false;
}

/* Why a handshake failed: the peer's certificate first, then what the peer said of ours. */
static void explain(hr_tls_end *end)
{
    const char *side = end->tls->for_listener ? "client" : "server";
    long verified = SSL_get_verify_result(end->ssl);
    unsigned long code = ERR_peek_last_error();
    int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;

    if (!SSL_is_init_finished(end->ssl) && verified != X509_V_OK)
        say(end->fault, sizeof end->fault,
            "the %s's certificate is not accepted: %s%s%s%s; look at "
            "%s",
            side, X509_verify_cert_error_string(verified),
            end->tls->named ? " (expected name: " : "", end->tls->named ? end->tls->name : "",
            end->tls->named ? ")" : "",
            end->tls->for_listener ? "the listener's CA file" : "the target's CA file and name");
    else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE)
        say(end->fault, sizeof end->fault,
            "the client has sent no certificate, and this listener "
            "demands one; give the client a certificate of the listener's CA");
    else if (reason >= SSL_AD_REASON_OFFSET)
        say(end->fault, sizeof end->fault,
            "the %s has rejected the TLS handshake: %s; look at what "
            "certificates and versions of TLS it takes",
            side, last_words());
    else if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST)
        say(end->fault, sizeof end->fault,
            "the %s does not speak TLS here; look at its port and "
            "whether TLS is switched on",
            side);
    else if (end->socket_error != 0)
        say(end->fault, sizeof end->fault, "the %s's connection failed under TLS: %s", side,
            strerror(end->socket_error));
    else if (code == 0)
        say(end->fault, sizeof end->fault, "the %s has closed the connection%s", side,
            SSL_is_init_finished(end->ssl) ? "" : " during the TLS handshake; look at its log");
    else
        say(end->fault, sizeof end->fault, "TLS with the %s failed: %s", side, last_words());
    ERR_clear_error();
}

/* An SSL call that did not work, as one of HR_TLS_*. */
static int outcome(hr_tls_end *end, int result)
{
    switch (SSL_get_error(end->ssl, result)) {
    case SSL_ERROR_WANT_READ:
        return HR_TLS_READ;
    case SSL_ERROR_WANT_WRITE:
        return HR_TLS_WRITE;
    case SSL_ERROR_ZERO_RETURN:
        return HR_TLS_CLOSED;
    default:
        explain(end);
        return HR_TLS_FAILED;
    }
}

int hr_tls_shake(hr_tls_end *end)
{
    int result, said;

    if (end->fault[0] != '\0')
        return HR_TLS_FAILED;
    hr_tls_readable(end);
    ERR_clear_error();
    result = SSL_do_handshake(end->ssl);
    if (result == 1)
        return HR_TLS_DONE;
    said = outcome(end, result);
    if (said == HR_TLS_CLOSED) {
        explain(end);
        return HR_TLS_FAILED;
    }
    return said;
}

ssize_t hr_tls_read(hr_tls_end *end, void *bytes, size_t length)
{
    int result;

    if (end->fault[0] != '\0')
        return HR_TLS_FAILED;
    ERR_clear_error();
    result = SSL_read(end->ssl, bytes, length > INT_MAX ? INT_MAX : (int) length);
    return result > 0 ? result : outcome(end, result);
}

ssize_t hr_tls_write(hr_tls_end *end, const void *bytes, size_t length)
{
    int result;

    if (end->fault[0] != '\0')
        return HR_TLS_FAILED;
    if (length == 0)
        return 0;
    ERR_clear_error();
    result = SSL_write(end->ssl, bytes, length > INT_MAX ? INT_MAX : (int) length);
    return result > 0 ? result : outcome(end, result);
}

const char *hr_tls_fault(const hr_tls_end *end)
{
    return end->fault[0] == '\0' ? "no fault" : end->fault;
}
