/*
 * trust.c: whose tags count (R149). A tag that is bound counts from the users it is bound to, or if
 * the statement is signed:
 *
 *   headgate_sig='v1.<expires, Unix s>.<64 hex digits>'
 *   HMAC-SHA256(secret, "v1\n<expires>\n<username>\n" and "key=value\n" of all other tags, by key)
 *
 * What does not count is dropped before anybody else sees it: identity, priority and budgets alike.
 * A verdict is remembered with all that it was reached by, and that is compared in full: a hash that
 * clients can produce on purpose would let one signature vouch for other tags.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdio.h>

#include "internal.h"

#define SIGNATURE "headgate_sig"
#define DIGEST_BYTES 32u
#define DIGEST_DIGITS 64u
#define MAX_DIGITS 12u /* of the time: some 30,000 years */
#define MESSAGE_BYTES (16u + MAX_DIGITS + 256u + HG_MAX_TAGS * 2u + sizeof(((hg_tags *) 0)->text))

typedef struct signature {
    int64_t expires_s;
    const char *digits; /* 64 of them */
} signature;

static const char *key_of(const hg_tags *tags, const hg_tag *tag)
{
    return tags->text + tag->key_offset;
}

static bool is_signature(const hg_tags *tags, const hg_tag *tag)
{
    return tag->key_length == sizeof SIGNATURE - 1
           && memcmp(key_of(tags, tag), SIGNATURE, sizeof SIGNATURE - 1) == 0;
}

/* By its own name before "*"; NULL: it is free for all. */
static const hg_trust *trust_of(const hg_identity *identity, const char *key, size_t length)
{
    const hg_trust *any = NULL;

    for (uint32_t i = 0; i < identity->trusts; i++) {
        const hg_trust *trust = &identity->trust[i];

        if (strlen(trust->key) == length && memcmp(trust->key, key, length) == 0)
            return trust;
        if (strcmp(trust->key, "*") == 0)
            any = trust;
    }
    return any;
}

static bool is_from(const hg_trust *trust, const char *username)
{
    for (uint32_t i = 0; i < trust->users; i++)
        if (strncmp(trust->user[i], username, sizeof trust->user[i]) == 0)
            return true;
    return false;
}

/* ── Signatures ───────────────────────────────────────────────────────────── */

static bool read_signature(const hg_tags *tags, const hg_tag *tag, signature *out)
{
    const char *at = tags->text + tag->value_offset;
    const char *end = at + tag->value_length;
    uint32_t digits = 0;

    if (end - at < 3 || memcmp(at, "v1.", 3) != 0)
        return false;
    out->expires_s = 0;
    for (at += 3; at < end && *at >= '0' && *at <= '9' && digits < MAX_DIGITS; at++, digits++)
        out->expires_s = out->expires_s * 10 + (*at - '0');
    if (digits == 0 || end - at != DIGEST_DIGITS + 1 || *at != '.')
        return false;
    out->digits = at + 1;
    return true;
}

static bool find_signature(const hg_tags *tags, signature *out)
{
    for (uint32_t i = 0; i < tags->count; i++)
        if (is_signature(tags, &tags->tags[i]))
            return read_signature(tags, &tags->tags[i], out);
    return false;
}

static bool comes_before(const hg_tags *tags, const hg_tag *a, const hg_tag *b)
{
    size_t least = a->key_length < b->key_length ? a->key_length : b->key_length;
    int order = memcmp(key_of(tags, a), key_of(tags, b), least);

    return order < 0 || (order == 0 && a->key_length < b->key_length);
}

/* All but the signature, by key; they are few. */
static uint32_t sorted(const hg_tags *tags, const hg_tag **out)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < tags->count; i++) {
        uint32_t at = count;

        if (is_signature(tags, &tags->tags[i]))
            continue;
        for (; at > 0 && comes_before(tags, &tags->tags[i], out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = &tags->tags[i];
        count++;
    }
    return count;
}

static size_t put(char *out, size_t at, const char *bytes, size_t length)
{
    memcpy(out + at, bytes, length);
    return at + length;
}

static size_t message_of(const hg_tags *tags, const signature *signed_by, const char *username,
                         char *out)
{
    const hg_tag *order[HG_MAX_TAGS];
    uint32_t count = sorted(tags, order);
    size_t at = (size_t) sprintf(out, "v1\n%lld\n", (long long) signed_by->expires_s);

    at = put(out, at, username, strnlen(username, 255));
    at = put(out, at, "\n", 1);
    for (uint32_t i = 0; i < count; i++) {
        at = put(out, at, key_of(tags, order[i]), order[i]->key_length);
        at = put(out, at, "=", 1);
        at = put(out, at, tags->text + order[i]->value_offset, order[i]->value_length);
        at = put(out, at, "\n", 1);
    }
    return at;
}

static int hex_digit(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit = (char) (digit | 32);
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static bool is_signed(const hg_identity *identity, const signature *given, const char *message,
                      size_t length)
{
    uint8_t digest[DIGEST_BYTES];
    uint8_t differs = 0; /* in one time, wherever the first difference lies */

    hg_hmac_sha256(identity->secret, identity->secret_length, message, length, digest);
    for (uint32_t i = 0; i < DIGEST_BYTES; i++) {
        int high = hex_digit(given->digits[2 * i]);
        int low = hex_digit(given->digits[2 * i + 1]);

        if (high < 0 || low < 0)
            return false;
        differs |= (uint8_t) ((high * 16 + low) ^ digest[i]);
    }
    return differs == 0;
}

static bool is_remembered(const hg_cached_signature *cached, uint32_t naming,
                          const signature *given, const char *message, size_t length)
{
    return cached->length == length && cached->naming == naming
           && memcmp(cached->signature, given->digits, DIGEST_DIGITS) == 0
           && memcmp(cached->message, message, length) == 0;
}

/* Whether the statement is signed by who knows the secret, for this user and all of its tags. */
static bool vouched_for(hg_signature_cache *signatures, const hg_identity *identity,
                        uint32_t naming, const char *username, const signature *given,
                        const hg_tags *tags)
{
    char message[MESSAGE_BYTES];
    size_t length = message_of(tags, given, username, message);
    uint64_t hash = hg_hash(6, given->digits, 16);
    hg_cached_signature *cached = &signatures->entry[hash % signatures->entries];
    bool good;

    if (is_remembered(cached, naming, given, message, length))
        return cached->good;
    good = is_signed(identity, given, message, length);
    if (length <= sizeof cached->message) {
        cached->length = (uint32_t) length;
        cached->naming = naming;
        cached->good = good;
        memcpy(cached->signature, given->digits, DIGEST_DIGITS);
        memcpy(cached->message, message, length);
    }
    return good;
}

/* ── Both ─────────────────────────────────────────────────────────────────── */

typedef struct verdict {
    bool looked, good;
} verdict;

static bool counts(const hg_identity *identity, const hg_tags *tags, const hg_tag *tag,
                   const char *username, bool *needs_signature)
{
    const hg_trust *trust = trust_of(identity, key_of(tags, tag), tag->key_length);

    *needs_signature = false;
    if (trust == NULL || is_from(trust, username))
        return true;
    *needs_signature = trust->by_signature != 0;
    return false;
}

/* Looked for only if some tag needs it. */
static bool is_vouched(hg_signature_cache *signatures, const hg_identity *identity, uint32_t naming,
                       const char *username, int64_t wall_ms, const hg_tags *tags,
                       int64_t *until_ms)
{
    signature given;

    if (identity->secret_length == 0 || !find_signature(tags, &given)
        || wall_ms >= given.expires_s * 1000
        || !vouched_for(signatures, identity, naming, username, &given, tags))
        return false;
    if (given.expires_s * 1000 < *until_ms)
        *until_ms = given.expires_s * 1000;
    return true;
}

uint32_t hg_trust_tags(hg_signature_cache *signatures, const hg_identity *identity, uint32_t naming,
                       const char *username, int64_t wall_ms, hg_tags *tags, int64_t *until_ms)
{
    verdict seen = {false, false};
    bool keep[HG_MAX_TAGS];
    uint32_t kept = 0;
    uint32_t dropped = 0;

    for (uint32_t i = 0; i < tags->count; i++) {
        bool needs_signature = false;

        if (is_signature(tags, &tags->tags[i])) {
            keep[i] = false; /* another in each statement: no part of what it is */
            continue;
        }
        keep[i] = counts(identity, tags, &tags->tags[i], username, &needs_signature);
        if (needs_signature && !seen.looked) {
            seen.looked = true;
            seen.good = is_vouched(signatures, identity, naming, username, wall_ms, tags, until_ms);
        }
        keep[i] |= needs_signature && seen.good;
        dropped += !keep[i];
    }
    for (uint32_t i = 0; i < tags->count; i++)
        if (keep[i])
            tags->tags[kept++] = tags->tags[i];
    tags->count = kept;
    return dropped;
}
