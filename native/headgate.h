/*
 * headgate.h: the traffic core. Which budgets a statement falls under, whether it may run, and
 * what it is charged. C11, no dependencies, no allocation.
 *
 *   policy (immutable, flat)   hg_policy_check ─► hg_session_resolve ─► hg_match ─► hg_matches
 *   region (shared, mutable)   hg_check, hg_take ─► run ─► hg_settle
 *
 * All state lies in one flat region of memory that the caller gives: Postgres shared memory, a
 * mapping shared by the workers of a proxy, or an array in a test. There are no pointers in it,
 * so every process may map it elsewhere.
 *
 * The readable twin of this file, and the specification, is src/headgate/budgets/ (Python).
 * tests/vectors/traffic*.json and a differential property test hold the two together.
 *
 * Time: `now_ns` is a monotonic clock's, the same for all that share a region; `wall_ms` is Unix
 * time, and serves for expiry alone. Cost is CPU time in nanoseconds. Percentages are in
 * thousandths of a percent (mpct): 100 % = 100000. Whole-server seconds likewise: a capacity of
 * 200 (%·s) is 200000, and on 8 CPUs 16 CPU-seconds.
 */
#ifndef HEADGATE_H
#define HEADGATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HG_POLICY_FORMAT 2u
#define HG_REGION_FORMAT 3u
#define HG_POLICY_MAGIC "HGPOLICY"
#define HG_REGION_MAGIC "HGREGION"

#define HG_MAX_MATCHES 32u /* budgets that apply to one statement; more are counted, not applied */
#define HG_MAX_TAGS 32u /* tags of one statement; more are counted, not read */
#define HG_MAX_KEY_BYTES 65u /* R120 */
#define HG_MAX_VALUE_BYTES 1024u
#define HG_MAX_SESSION_PRESENT 132u /* three names, and an IPv6 address under each length of mask */
#define HG_MAX_PRESENT 168u /* pairs of a statement that some rule names */
#define HG_MAX_BUDGETS 65536u
#define HG_MAX_RULES 65536u
#define HG_MAX_NAME_BYTES 63u
#define HG_MAX_SOURCES 16u /* of identity */
#define HG_MAX_TRUSTS 16u
#define HG_MAX_IDENTITY_BYTES 127u
#define HG_MAX_LEVELS 8u
#define HG_MAX_GATES 65536u
#define HG_NO_GATE UINT32_MAX
#define HG_ALL UINT32_MAX /* hg_gate.ratio: every statement */
#define HG_MAX_COST_NS 10000000000000ull /* 10,000 s of CPU; what costs more is charged that */
#define HG_NEVER UINT64_MAX

/* ── The compiled policy ──────────────────────────────────────────────────── */

/* Keys that the server knows. Tags follow in keys[] from HG_SYSTEM_KEYS on, sorted by name. */
enum {
    HG_KEY_USERNAME = 0,
    HG_KEY_DATABASE = 1,
    HG_KEY_APPLICATION_NAME = 2,
    HG_KEY_REMOTE_ADDRESS = 3,
    HG_KEY_QUERY = 4, /* the server's query id, as 8 bytes, least significant first */
    HG_KEY_FINGERPRINT = 5, /* of the statement's text, hg_fingerprint, as 8 bytes */
    HG_SYSTEM_KEYS = 6
};

enum { HG_MODE_OFF = 0, HG_MODE_WARN = 1, HG_MODE_ENFORCE = 2 };

enum { /* hg_policy.flags */
       HG_POLICY_OFF = 1u, /* published to switch everything off */
       HG_POLICY_BY_HEALTH = 2u, /* some budget is `when = "unhealthy"` */
       HG_POLICY_EXPIRES = 4u, /* some budget has an end */
       HG_POLICY_UNKNOWN_BITES = 8u /* health_unknown = "unhealthy" */
};

enum { /* hg_budget.set: which limits there are; an explicit 0 is set, and admits nothing */
       HG_SET_RATE = 1u,
       HG_SET_CAPACITY = 2u,
       HG_SET_BURST = 4u,
       HG_SET_CONCURRENCY = 8u, /* percent of the region's workers, rounded up */
       HG_SET_MAX_WORKERS = 16u,
       HG_SET_WARNING = 32u
};

enum { /* hg_budget.flags */
       HG_BUDGET_WHEN_UNHEALTHY = 1u,
       HG_BUDGET_BLOCKS_INSIDE = 2u /* inside a transaction that its client has begun, too */
};

typedef struct hg_section {
    uint32_t offset; /* in bytes, from the policy's start; a multiple of 8 */
    uint32_t count; /* of elements */
} hg_section;

typedef struct hg_string {
    uint32_t offset; /* into the strings section */
    uint32_t length;
} hg_string;

typedef struct hg_policy {
    char magic[8];
    uint32_t format;
    uint32_t crc; /* CRC-32 (zlib's) of the whole policy, with these four bytes zero */
    uint64_t length; /* of the whole policy in bytes, a multiple of 8 */
    uint64_t version; /* rises with every publication */
    uint32_t flags;
    uint32_t system_keys; /* bit k: some rule names system key k, to match or for each */
    hg_section budgets; /* hg_budget, in the order of the document, mode off left out */
    hg_section rules; /* hg_rule, grouped by budget, in the order of the document */
    hg_section conditions; /* uint32_t, indices of pairs */
    hg_section eaches; /* uint32_t, indices of keys, ascending within a rule */
    hg_section pairs; /* hg_pair, in the order of first use */
    hg_section slots; /* hg_slot, a power of two of at least twice the pairs; linear probing */
    hg_section candidates; /* uint32_t, indices of rules, ascending within a pair or key */
    hg_section always; /* uint32_t, rules without conditions and without each */
    hg_section keys; /* hg_key; at least HG_SYSTEM_KEYS */
    hg_section masks; /* hg_mask, IPv4 first, longest first within a family */
    hg_section exempt; /* hg_string: usernames that no rule applies to */
    hg_section identity; /* hg_identity, one or none: without it nobody has a name */
    hg_section gates; /* hg_gate, by token, then by rank */
    hg_section strings; /* bytes */
} hg_policy;

typedef struct hg_budget {
    uint64_t key; /* hg_hash(2, name), never 0 or 1 */
    hg_string name;
    uint32_t set;
    uint32_t rate_mpct;
    uint32_t capacity_mpcts;
    uint32_t burst_mpcts;
    uint32_t concurrency_mpct;
    uint32_t max_workers;
    uint32_t warning_mpct;
    uint32_t epoch; /* raised to forgive the budget's debt */
    uint32_t max_delay_ms;
    uint32_t penalty_ms;
    uint32_t max_delayed;
    uint8_t mode;
    uint8_t flags;
    uint16_t reserved;
    int64_t expires_at_ms; /* Unix time; 0: never */
} hg_budget;

typedef struct hg_rule {
    uint32_t budget;
    uint32_t first_condition;
    uint32_t first_each;
    uint16_t conditions;
    uint16_t eaches;
    uint16_t prefix; /* bits of its remote_address condition, plus 1; 0: it has none */
    uint16_t reserved;
    uint32_t reserved2;
} hg_rule;

/* A conjunction is a candidate under its rarest pair alone (the fewest rules name it; the first of
 * several), so it is found once. A rule with each-keys and no conditions is a candidate under its
 * first each-key. */
typedef struct hg_pair {
    uint64_t hash; /* hg_hash(key's hash, value) */
    uint32_t key;
    uint32_t prefix; /* remote_address: family (4 or 6) * 256 + bits; else 0 */
    hg_string value; /* remote_address: 4 or 16 bytes, masked, then one byte of bits */
    uint32_t first_candidate;
    uint32_t candidates;
} hg_pair;

typedef struct hg_slot {
    uint32_t mark; /* the hash's upper half */
    uint32_t pair; /* its index plus 1; 0: free */
} hg_slot;

typedef struct hg_key {
    uint64_t hash; /* hg_hash(0, name) of a system key, hg_hash(1, name) of a tag */
    hg_string name; /* a tag's without "tag." */
    uint32_t first_candidate;
    uint32_t candidates;
} hg_key;

typedef struct hg_mask {
    uint32_t family; /* 4 or 6 */
    uint32_t bits;
} hg_mask;

/* ── Who a client is, and the operator's rules on it ── */

/* Where the name of a client comes from, first that has a value (R96). */
enum {
    HG_FROM_TAG = 1, /* name: key of the tag */
    HG_FROM_ATTRIBUTE = 2, /* name: MySQL connection attribute, or Postgres start-up parameter */
    HG_FROM_APPLICATION = 3, /* application_name; MySQL: attribute program_name */
    HG_FROM_VARIABLE = 4, /* name: session variable, as SET in this session (headgate.client, @headgate_client) */
    HG_FROM_USER = 5,
    HG_FROM_DATABASE = 6,
    HG_FROM_PATTERN = 7 /* "pattern:<16 hex digits>" */
};

typedef struct hg_source {
    uint32_t kind;
    uint32_t name_length;
    char name[64];
} hg_source;

/* A tag whose value counts only from these users, or signed (R149). Without both it is never taken. */
typedef struct hg_trust {
    char key[66]; /* of the tag; "*": every tag */
    uint16_t users; /* 0: from no user alone */
    char user[8][64];
    uint8_t by_signature; /* also from anybody, if headgate_sig vouches for it */
    uint8_t reserved[3];
} hg_trust;

typedef struct hg_identity {
    uint32_t sources;
    uint32_t trusts;
    hg_source source[HG_MAX_SOURCES];
    hg_trust trust[HG_MAX_TRUSTS];
    char priority_tag[66]; /* whose value is the priority 0–100 (R100); empty: none */
    uint8_t default_priority;
    uint8_t secret_length; /* of the HMAC-SHA256 key; 0: nothing can be signed */
    uint8_t secret[64];
} hg_identity;

enum { HG_GATE_REJECTS = 1, HG_GATE_EXEMPTS = 2, HG_GATE_EXEMPTS_PARTLY = 3 };

/* A rule on clients (hold, ratio, exempt), within a span of time. It applies to a client if each level of
 * its target is one of the client's. Of several, one on the whole name beats one on several levels, that beats
 * one on a single level, and "all" comes last; among equals the lowest rank. An exemption from some metrics only
 * comes before broader exemptions, which do not count then; it exempts no statement. */
typedef struct hg_gate {
    uint64_t token; /* hg_hash(5, the target's first level) */
    hg_string target;
    hg_string rule; /* its id */
    hg_string reason; /* for the error's text */
    int64_t from_ms, until_ms; /* Unix time; INT64_MAX: no end */
    uint32_t ratio; /* of HG_ALL: the share of statements that it blocks */
    uint32_t rank;
    uint8_t kind;
    uint8_t levels; /* of the target; 0: "all" */
    uint16_t reserved;
    uint32_t reserved2;
} hg_gate;

_Static_assert(sizeof(hg_gate) == 64, "hg_gate");
_Static_assert(sizeof(hg_policy) == 152, "hg_policy");
_Static_assert(sizeof(hg_budget) == 72, "hg_budget");
_Static_assert(sizeof(hg_rule) == 24, "hg_rule");
_Static_assert(sizeof(hg_pair) == 32, "hg_pair");
_Static_assert(sizeof(hg_key) == 24, "hg_key");

/* FNV-1a over the bytes, from seed ^ 0xcbf29ce484222325, then mixed:
 * h ^= h >> 32; h *= 0xd6e8feb86659fd93; h ^= h >> 32; h *= 0xd6e8feb86659fd93; h ^= h >> 32. */
uint64_t hg_hash(uint64_t seed, const void *bytes, size_t length);
uint32_t hg_crc32(uint32_t crc, const void *bytes, size_t length);

/* NULL if `bytes` is a whole and sound policy: every offset, count, index and string in bounds,
 * every list sorted as it says, the checksum right. Else what is wrong with it, a constant. After
 * this nothing is checked again. `bytes` is aligned to 8. */
const char *hg_policy_check(const void *bytes, size_t length);

/* A policy as text, as `headgate budget compile` prints it: its bytes in base64 (RFC 4648, padded,
 * without line breaks). `out` is aligned to 8 and has room for length / 4 * 3 bytes. NULL if what is
 * there then is a whole and sound policy of `*out_length` bytes; else what is wrong with it. */
const char *hg_policy_decode(const char *text, size_t length, void *out, size_t *out_length);

/* ── The client ───────────────────────────────────────────────────────────── */

typedef struct hg_client {
    const char *username;
    const char *database;
    const char *application_name; /* each NULL if there is none */
    uint8_t family; /* 4, 6, or 0 without an address (a Unix socket) */
    uint8_t address[16]; /* in network order; an IPv4 address mapped into IPv6 is given as IPv4 */
} hg_client;

/* What a session's own pairs resolve to under one policy; resolve again when either changes. */
typedef struct hg_session {
    uint32_t present[HG_MAX_SESSION_PRESENT]; /* pairs of username, database, application_name,
                                               * remote_address */
    uint32_t presents;
    uint32_t addresses; /* of them, of remote_address: the last ones */
    uint32_t probes; /* look-ups made for it */
    bool exempt;
    bool may_match; /* false: no statement of this session can match any rule */
    bool needs_tags; /* some rule that may still match names a tag */
    bool needs_query;
    bool needs_fingerprint;
    bool each_tags; /* some rule without conditions is for each value of a tag */
    uint64_t
        tag_keys; /* a bit for each key that some rule names, by its hash: others lead nowhere */
    uint64_t each_hash[4]; /* of the values of the four session keys; 0: none */
    uint8_t each_label_length[4];
    char each_label[4][47]; /* "username=etl", cut */
} hg_session;

void hg_session_resolve(const hg_policy *policy, const hg_client *client, hg_session *session);

/* ── The statement ────────────────────────────────────────────────────────── */

enum { HG_POSTGRES = 0, HG_MYSQL = 1 }; /* how literals and comments read */

typedef struct hg_tag {
    uint16_t key_offset, key_length; /* into hg_tags.text, decoded */
    uint16_t value_offset, value_length;
} hg_tag;

typedef struct hg_tags {
    uint32_t count;
    uint32_t ignored; /* malformed, too long, or beyond HG_MAX_TAGS */
    uint32_t duplicates; /* a key again: the last one counts */
    hg_tag tags[HG_MAX_TAGS];
    uint16_t used;
    char text[8192];
} hg_tags;

/* The tags in the comments of one statement (R120), aware of literals, quoted names, dollar quotes,
 * nested comments (Postgres) and hints (which are never tags). */
void hg_tags_read(const char *text, size_t length, int dialect, hg_tags *tags);

/* Of the text without comments, case of unquoted names, literals and lists. */
uint64_t hg_fingerprint(const char *text, size_t length, int dialect);

typedef struct hg_statement {
    const char *text; /* this statement's own slice of the text */
    size_t length;
    int dialect;
    uint64_t query_id; /* 0: not known */
    bool fingerprinted;
    bool
        cut; /* the text goes on, and what it says there is not known: rules that ask for a tag or a
               * fingerprint are taken for matched, behind all those that match by what is known */
    uint64_t fingerprint; /* if fingerprinted; else it is worked out when a rule needs it */
} hg_statement;

typedef struct hg_match_one {
    uint32_t budget; /* index */
    uint32_t rule; /* index of the first rule that brought it */
    uint64_t bucket; /* key of the bucket; the budget's own key unless the rule is for each. Then,
                         * from the budget's key on, for every each-key in order: hg_hash(bucket so
                         * far, v), v the 8 bytes (least significant first) of hg_hash(key's hash,
                         * value); where v or the bucket comes to 0 or 1, add 2 */
    uint8_t label_length;
    char label[47]; /* of an each-bucket: "tenant=acme", several joined by ",", cut; an address
                         * as inet_ntop writes it, query and fingerprint as 16 hex digits */
} hg_match_one;

typedef struct hg_matches {
    uint32_t count;
    uint32_t left_out; /* beyond HG_MAX_MATCHES */
    uint32_t ignored_tags, duplicate_tags;
    uint32_t probes; /* pairs: each costs one look-up, or none where no rule names its tag (R116) */
    uint32_t
        client; /* its place in the region's table; 0: the others', UINT32_MAX: nobody has a name */
    uint32_t gate; /* the rule on it, HG_NO_GATE */
    uint32_t reserved;
    hg_match_one
        at[HG_MAX_MATCHES]; /* by rule, so in the order of the document; each bucket once */
} hg_matches;

/* Of the rules that match as a whole, those with an address apply only if theirs is the longest
 * prefix among them; only an enforced budget's hides an enforced one's. Budgets that have expired
 * or rest are left out (before that: their rules hide no others). `healthy`: 1, 0, or -1 unknown.
 * `scratch` may be NULL if no rule names a tag. */
void hg_match(const hg_policy *policy, const hg_session *session, const hg_statement *statement,
              int64_t wall_ms, int healthy, hg_tags *scratch, hg_matches *matches);
/* With its tags read already, and those left out that are not to be trusted; NULL: none. The text is
 * looked at only for a fingerprint that a rule asks for and nobody has given. */
void hg_match_tags(const hg_policy *policy, const hg_session *session,
                   const hg_statement *statement, int64_t wall_ms, int healthy, const hg_tags *tags,
                   hg_matches *matches);

/* ── The client's name ────────────────────────────────────────────────────── */

/* What is wrong with it, a constant; NULL: nothing. */
const char *hg_identity_fault(const hg_identity *identity);
/* NULL: the policy has none. */
const hg_identity *hg_identity_of(const hg_policy *policy);
/* A value made a name: levels between colons, and what may not stand in one becomes _. Its length, without a
 * NUL; 0: nothing is left. */
size_t hg_name(const char *value, size_t length, char out[HG_MAX_IDENTITY_BYTES]);
const hg_tag *hg_tag_named(const hg_tags *tags, const char *name, size_t length);
/* By the first source that has a value; "unidentified" without one. Its length. `fingerprint`: for sources
 * of the pattern. `by_tag`: whether the statement names its client. Connection attributes and session
 * variables are known to a proxy alone. */
size_t hg_identify(const hg_identity *identity, const hg_client *client, const hg_tags *tags,
                   uint64_t fingerprint, char out[HG_MAX_IDENTITY_BYTES + 1], bool *by_tag);
/* The rule that decides about the client of that name; HG_NO_GATE. One on `all` only where the statement
 * names its client: every session has a user and most an application_name, those of production too. */
uint32_t hg_gate_of(const hg_policy *policy, const char *name, size_t length, bool by_tag,
                    int64_t wall_ms);
/* The next time at which another may; INT64_MAX. */
int64_t hg_gates_until(const hg_policy *policy, int64_t wall_ms);
const hg_gate *hg_gate_at(const hg_policy *policy, uint32_t gate);

/* ── Whose tags count (trust.c) ───────────────────────────────────────────── */

#define HG_SIGNED_BYTES 768u

/* A signature that was looked at, with all that it vouches for: compared in full. */
typedef struct hg_cached_signature {
    uint32_t length; /* 0: none */
    uint32_t naming;
    bool good;
    char signature[64];
    char message[HG_SIGNED_BYTES];
} hg_cached_signature;

typedef struct hg_signature_cache {
    uint32_t entries;
    hg_cached_signature *entry;
} hg_signature_cache;

void hg_hmac_sha256(const uint8_t *key, size_t key_length, const void *message, size_t length,
                    uint8_t digest[32]);

/* Leaves out those that are not to be trusted, and the signature itself: how many of the former. `naming`: a
 * number of these settings, so that what is remembered is of them. until_ms: when the verdict ends, if a
 * signature brought it; else it is left alone. */
uint32_t hg_trust_tags(hg_signature_cache *signatures, const hg_identity *identity, uint32_t naming,
                       const char *username, int64_t wall_ms, hg_tags *tags, int64_t *until_ms);

/* ── The region ───────────────────────────────────────────────────────────── */

#define HG_WAYS 16u /* buckets in a set */
#define HG_OWN_WAYS                                                                                \
    4u /* of them, the first: closed to buckets per distinct value (rules with each), so that
                              * these never make a budget's own bucket forget its debt */
#define HG_EACH_WAYS (HG_WAYS - HG_OWN_WAYS)
#define HG_PATTERN_WAYS 4u

typedef struct hg_sizes {
    uint32_t seats; /* of processes or threads that decide */
    uint32_t budgets; /* whose counts are kept; a power of two */
    uint32_t buckets; /* a power of two, at least HG_WAYS */
    uint32_t patterns; /* a power of two, at least HG_PATTERN_WAYS */
    uint32_t policy_bytes; /* largest compiled policy; a multiple of 4096 */
    uint32_t traces; /* statements kept for replay; a power of two, or 0 */
    uint32_t clients; /* whose decisions are counted by name; a power of two, or 0 */
} hg_sizes;

/* One process's own place: written by it alone, read by all. */
typedef struct hg_seat {
    _Atomic uint32_t using_area; /* 1 or 2 while it reads a policy there, else 0 */
    _Atomic uint32_t pid; /* 0: free */
    _Atomic uint64_t version; /* of the policy it last decided by */
    _Atomic uint32_t crc;
    _Atomic uint32_t reserved;
    _Atomic uint64_t worker_ns; /* CPU that its parallel workers have used, until it takes it */
    _Atomic uint64_t statements; /* top statements seen while there was a policy */
    _Atomic uint64_t matched; /* of them, under at least one budget */
    _Atomic uint64_t ignored_tags;
    _Atomic uint64_t duplicate_tags;
    _Atomic uint64_t left_out;
    _Atomic uint64_t bypassed;
    _Atomic uint64_t spare[6];
} hg_seat;

enum { HG_NO_LIMIT = 0, HG_CONCURRENCY = 1, HG_QUERY = 2, HG_BUCKET = 3, HG_LIMITS = 4 };

/* Counts of one budget; its key is claimed by the first who counts. */
typedef struct hg_count {
    _Atomic uint64_t key;
    _Atomic uint64_t admitted;
    _Atomic uint64_t estimated_ns; /* of what was admitted */
    _Atomic uint64_t charged_ns; /* what it came to */
    _Atomic uint64_t passed; /* over a limit, but inside a transaction (R148) */
    _Atomic uint64_t sleeping; /* held now, by a delay or a penalty */
    _Atomic uint64_t forgiven_ns; /* debt of buckets that were evicted or forgiven (R113) */
    _Atomic uint64_t evicted; /* buckets evicted that still had debt */
    _Atomic uint64_t
        warned[HG_LIMITS]; /* would have been blocked; [0]: crossed warning_threshold only */
    _Atomic uint64_t blocked[HG_LIMITS]; /* [0]: of them, before planning */
    _Atomic uint64_t delayed; /* statements that waited for room */
    _Atomic uint64_t delayed_ns;
    _Atomic uint64_t unpinned; /* ran uncounted: every bucket of the set was in use */
    _Atomic int64_t last_violation_ms;
    _Atomic uint64_t wall_ns; /* how long what it admitted has run, by the clock */
    _Atomic uint64_t spare[3];
    char name[64];
} hg_count;

/* A bucket is the time at which it will be empty. Its key lies apart, in the set's line of keys. */
typedef struct hg_bucket {
    _Atomic uint64_t empty_at_ns;
    _Atomic uint64_t refunded_ns; /* ever, in the bucket's own time */
    _Atomic uint64_t holders; /* statements << 32 | workers. Statements that have not ended,
                                   * idle cursors among them, pin it; workers run now */
    _Atomic uint32_t rate_mpct; /* by which empty_at_ns is reckoned */
    _Atomic uint32_t epoch;
    uint64_t budget_key;
    uint32_t label_length;
    uint32_t reserved;
    _Atomic uint64_t admitted;
    _Atomic uint64_t
        refunding_ns; /* as refunded_ns, but counted before a refund instead of after it */
    char label[64];
} hg_bucket;

/* What is known of the cost of one plan shape: a line through the logarithms of plan cost and CPU. Each word
 * is written whole; two words may be of different moments, which is harmless. budgets/cost.py says what they are. */
typedef struct hg_line {
    _Atomic uint64_t state; /* variance, a float (low half); shape, 16 bits; calls, 8; 0, 8 */
    _Atomic uint64_t means; /* two floats, of log2: plan cost (low half), CPU there (high) */
    _Atomic uint64_t
        spreads; /* two floats: variance of plan cost (low half), its covariance with CPU */
    _Atomic uint64_t bends; /* four int16, in 1/1024: far below the mean, below, above, far above */
} hg_line;

#define HG_SHAPES 3u /* of a pattern's plan shapes, so many have a line of their own */

typedef struct hg_pattern {
    _Atomic uint64_t key; /* 0: free */
    _Atomic uint32_t calls; /* saturates */
    _Atomic uint32_t error; /* a float: EMA of |estimate - actual| / actual */
    _Atomic uint64_t cpu_ns; /* ever */
    _Atomic uint64_t last_ns; /* when it last ended, or was let try again */
    uint64_t query_id;
    uint64_t database;
    _Atomic uint64_t wall_ns; /* ever, by the clock */
    uint64_t reserved;
    hg_line whole; /* of all plans */
    hg_line shapes[HG_SHAPES];
} hg_pattern;

/* A statement that ended or was blocked, for replay (R145). Statements are drawn in proportion to
 * their cost: each trace represents about the same CPU time, so sums of cost come out right. */
typedef struct hg_trace {
    _Atomic uint64_t
        stamp; /* 2 n + 2 of the n-th trace ever once it is whole, 2 n + 1 while it is written */
    int64_t wall_ms; /* when it started or was blocked */
    uint64_t query_id;
    uint64_t fingerprint; /* 0: not worked out */
    uint64_t estimate_ns; /* the mean */
    uint64_t p90_ns;
    uint64_t actual_ns; /* 0: blocked */
    uint64_t wall_ns; /* how long it ran */
    double plan_cost;
    float weight; /* statements that it represents */
    uint32_t budget; /* low half of the deciding budget's key; 0: none */
    uint16_t workers;
    uint8_t verdict; /* hg_verdict */
    uint8_t limit; /* HG_* that decided */
    uint8_t flags; /* of hg_ask: HG_IN_TRANSACTION, HG_UTILITY; 128: aborted */
    uint8_t family;
    uint8_t address[16];
    uint8_t username_length, database_length, application_length;
    uint8_t spare;
    uint16_t tags_length; /* key NUL value NUL …, whole pairs only */
    uint16_t tags_left_out;
    char text[402]; /* username, database, application_name, tags: one after the other */
} hg_trace;

/* Decisions about one client's statements; its key is claimed by the first, and stays. The first place is
 * of those that have found none. */
typedef struct hg_tally {
    _Atomic uint64_t key; /* hg_hash(4, name) */
    _Atomic uint64_t admitted;
    _Atomic uint64_t by_budget; /* blocked, */
    _Atomic uint64_t by_rule;
    _Atomic uint64_t passed; /* a rule's hold, inside a transaction */
    _Atomic uint64_t last_budget; /* key of the last that blocked it */
    uint64_t spare[2];
    char name[HG_MAX_IDENTITY_BYTES + 1];
} hg_tally;

_Static_assert(sizeof(hg_tally) == 192, "hg_tally");
_Static_assert(sizeof(hg_trace) == 512, "hg_trace");
_Static_assert(sizeof(hg_seat) == 128, "hg_seat");
_Static_assert(sizeof(hg_count) == 256, "hg_count");
_Static_assert(sizeof(hg_bucket) == 128, "hg_bucket");
_Static_assert(sizeof(hg_line) == 32, "hg_line");
_Static_assert(sizeof(hg_pattern) == 192, "hg_pattern");

typedef struct hg_region {
    char magic[8];
    uint32_t format;
    uint32_t cpus_milli; /* CPUs that the server has, in thousandths */
    uint64_t length;
    hg_sizes sizes;
    uint32_t workers; /* 100 % of concurrency */
    uint64_t seats_at, counts_at, bucket_keys_at, bucket_locks_at, buckets_at, patterns_at,
        traces_at, clients_at, areas_at[2], end_at; /* in bytes from the region's start */
    uint64_t started_ns, started_ms; /* monotonic and Unix time of hg_region_init */
    _Atomic uint32_t area; /* 0: no policy yet; 1 or 2: the one in force */
    _Atomic uint32_t publishing; /* a lock: one at a time */
    _Atomic uint64_t version; /* of the policy in force */
    _Atomic uint32_t crc;
    _Atomic uint32_t enabled; /* 0: nobody decides anything */
    _Atomic int64_t published_ms;
    _Atomic uint32_t health; /* 0 never reported, 1 healthy, 2 unhealthy */
    _Atomic uint32_t rejected_policies;
    _Atomic int64_t health_until_ms; /* after that it is not known */
    uint64_t secret; /* says which set a bucket belongs to; 0: its key alone does */
    /* Written by every statement that ends: on a line apart from what every statement reads. */
    _Alignas(64) hg_line host; /* of all patterns: the guess for one that has never run */
    _Atomic uint64_t pattern_evictions;
    _Atomic uint64_t counts_full; /* counted for a budget that found no place */
    _Atomic uint64_t traced; /* traces written ever; the next goes to traced % traces */
    char rejection[128]; /* why the last policy was rejected */
} hg_region;

/* Counters order nothing: they are read for views alone. */
static inline void hg_add(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_fetch_add_explicit(counter, amount, memory_order_relaxed);
}

/* Of one that this thread alone writes to: no locked instruction is needed, and others read it whole. */
static inline void hg_add_own(_Atomic uint64_t *counter, uint64_t amount)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + amount,
                          memory_order_relaxed);
}

size_t hg_region_bytes(const hg_sizes *sizes); /* 0: the sizes are not sound */
/* All zero but the header. The memory is aligned to 64. */
const char *hg_region_init(void *memory, size_t length, const hg_sizes *sizes, uint32_t cpus_milli,
                           uint32_t workers, uint64_t now_ns, int64_t wall_ms);
/* Right after hg_region_init, before anything is stored: buckets are spread over the table by a
 * secret, so that nobody can make up values that crowd one set of it. A strong random number. */
void hg_region_keyed(hg_region *region, uint64_t secret);
const char *hg_region_check(const void *memory, size_t length);
/* For a process that is not the server's: checks it, and has this process go by a copy of its sizes
 * and places from then on, whatever others write there. Unpin before the memory is unmapped. */
const char *hg_region_pin(const void *memory, size_t length);
void hg_region_unpin(const void *memory);
/* Sizes and offsets by number, for readers in other languages to compare with their own: see
 * region.c. 0 beyond the last. */
size_t hg_layout(uint32_t which);

/* Takes the policy over whole, or not at all: NULL, or why not (not sound, too large, not newer
 * than the one in force, still being read: try again). `force` takes an older one, too
 * (a server's start). One that is in force already changes nothing. */
const char *hg_publish(hg_region *region, const void *bytes, size_t length, bool force,
                       int64_t wall_ms);
/* Whether what hg_publish said is no fault of the policy: publish it again a little later. */
bool hg_publish_again(const char *why);
/* A seat is one thread's; its taker says so, and gives it back. */
void hg_seat_take(hg_region *region, uint32_t seat, uint32_t pid);
void hg_seat_free(hg_region *region, uint32_t seat);
/* A process that died without giving back: its seats are freed, and what it had locked. Statements
 * that it was running stay counted, unless its hg_holdings lie where another can settle them. */
void hg_process_gone(hg_region *region, uint32_t pid);
/* The policy in force, which stays where it is until hg_leave; NULL if there is none or it is off. */
const hg_policy *hg_enter(hg_region *region, uint32_t seat);
void hg_leave(hg_region *region, uint32_t seat);
int hg_healthy(const hg_region *region, int64_t wall_ms); /* 1, 0, or -1: not known */
void hg_tell_health(hg_region *region, bool healthy, int64_t until_ms);

/* ── The decision ─────────────────────────────────────────────────────────── */

typedef enum hg_verdict { HG_RUN = 0, HG_WARN = 1, HG_DELAY = 2, HG_BLOCK = 3 } hg_verdict;

enum { /* hg_ask.flags */
       HG_EARLY = 1u, /* there is no plan yet: decide by what is known without it */
       HG_IN_TRANSACTION = 2u, /* something has run in this transaction, which the client has begun */
       HG_NO_DELAY = 4u, /* the caller cannot wait (any more) */
       HG_UTILITY = 8u, /* has no plan: plan_cost is 1, and it teaches nothing about others */
       HG_COST_GIVEN = 16u, /* cost_ns is the cost: a cooperative check (R146) */
       HG_MUST_RUN = 32u /* cannot be stopped any more (at COMMIT): charged, never blocked */
};

typedef struct hg_ask {
    uint64_t now_ns;
    int64_t wall_ms;
    double plan_cost;
    uint64_t cost_ns; /* with HG_COST_GIVEN */
    uint64_t p90_ns; /* likewise, if it is more than that */
    uint64_t pattern; /* key of the pattern, 0: none */
    uint64_t query_id; /* for the views */
    uint64_t database;
    uint32_t workers; /* processes it will use, at least 1 */
    uint32_t flags;
    uint32_t shape; /* 16 bits that say which kinds of nodes its plan has; 0: not known */
    uint32_t reserved;
} hg_ask;

typedef struct hg_answer {
    hg_verdict verdict;
    uint8_t limit[HG_MAX_MATCHES]; /* of each match: what it failed; HG_NO_LIMIT: nothing */
    uint8_t threshold[HG_MAX_MATCHES]; /* of each match: whose warning threshold it crossed, HG_* */
    uint32_t match; /* the one that decided (BLOCK, DELAY), or the first that warns */
    uint8_t decided_by; /* HG_CONCURRENCY, HG_QUERY, HG_BUCKET */
    bool passed; /* some enforced budget failed, but lets it go on inside its transaction */
    uint64_t estimate_ns; /* the mean */
    uint64_t p90_ns;
    uint64_t used; /* in the limit's own unit: workers; ns of CPU as p90; ns of debt */
    uint64_t bound; /* likewise */
    uint64_t retry_ns; /* until it would fit; HG_NEVER: it never will */
} hg_answer;

/* Whether it has a limit of 0, which admits nothing: it is how a statement is switched off. */
bool hg_is_shut(const hg_budget *budget);

/* Looks, and takes nothing. A rate or an epoch that has changed takes effect with the first look:
 * the debt, in CPU time, is the same, and drains by the new rate from then on (an epoch: it is
 * forgiven, once). */
void hg_check(hg_region *region, const hg_policy *policy, const hg_matches *matches,
              const hg_ask *ask, hg_answer *answer);

typedef struct hg_holding_one {
    uint64_t bucket;
    uint64_t count; /* the place of its budget's counts, plus 1; 0: none */
    uint64_t charged_ns; /* in the bucket's own time */
    uint64_t after_ns; /* empty_at_ns right after the charge */
    uint64_t refunded_ns; /* the bucket's, right before it */
    uint32_t index; /* of the bucket in the region, pinned until hg_settle; UINT32_MAX: none */
    uint32_t rate_mpct;
    bool counted; /* holds workers */
    bool charged;
} hg_holding_one;

typedef struct hg_holding {
    uint32_t count;
    uint32_t workers;
    uint32_t flags;
    uint32_t shape;
    uint64_t estimate_ns; /* what was charged: the mean */
    uint64_t p90_ns;
    uint64_t wall_ns; /* how long it ran, by the clock: its caller says so before it settles */
    double plan_cost;
    uint64_t pattern, query_id, database;
    hg_holding_one at[HG_MAX_MATCHES];
} hg_holding;

/* Takes a place and charges the estimate in every budget, or changes none (R104). On RUN and WARN
 * `holding` must be settled; on DELAY and BLOCK there is nothing to settle. Counts what it admits;
 * a block is counted by hg_count_block once it is final. */
void hg_take(hg_region *region, const hg_policy *policy, const hg_matches *matches,
             const hg_ask *ask, hg_answer *answer, hg_holding *holding);

/* Gives the places back, but goes on holding the charge, and the bucket in its place: a cursor
 * between two fetches. */
void hg_pause(hg_region *region, hg_holding *holding);
/* Takes the places again, without a check. */
void hg_resume(hg_region *region, hg_holding *holding);

/* The statement has ended: gives back, charges the difference between estimate and actual, and
 * learns. `aborted` statements may raise what is known of their pattern, never lower it. */
void hg_settle(hg_region *region, hg_holding *holding, uint64_t actual_ns, bool aborted,
               uint64_t now_ns);

/* Work that is done already, and was no statement of its own (planning): charged in all budgets, whatever
 * their limits say. Nothing is held, and nothing learnt. */
void hg_charge(hg_region *region, const hg_policy *policy, const hg_matches *matches,
               uint64_t cost_ns, uint64_t now_ns);

void hg_count_block(hg_region *region, const hg_policy *policy, const hg_matches *matches,
                    const hg_answer *answer, bool early, int64_t wall_ms);
/* A statement was delayed for so long in all, by a budget that had a place for it
 * (hg_sleep_begin): by its key, since the policy may be another one by then. */
void hg_count_delay(hg_region *region, uint64_t budget_key, uint64_t waited_ns);
/* A place among those that the budget may delay at once; false: it is full. */
bool hg_sleep_begin(hg_region *region, const hg_policy *policy, uint32_t budget);
void hg_sleep_end(hg_region *region, uint64_t budget_key);

/* Until one execution of a pattern that is blocked for its estimate alone is let through, to learn
 * whether it has become cheap; HG_NEVER: it has never run. */
uint64_t hg_until_trial(const hg_region *region, const hg_ask *ask, uint64_t estimate_ns);

/* Of CPU. */
typedef struct hg_cost {
    uint64_t mean_ns; /* what is charged */
    uint64_t
        p90_ns; /* nine of ten executions stay below it: what the per-query limit is compared with */
} hg_cost;

/* What a statement will use. */
hg_cost hg_estimate(const hg_region *region, const hg_ask *ask);

/* For views: an execution of the pattern whose plan is not known. Zeros: it has not run to its end yet. */
typedef struct hg_typical {
    hg_cost cost;
    double plan_cost;
    double k; /* CPU ns per unit of plan cost */
} hg_typical;

void hg_pattern_typical(const hg_pattern *pattern, hg_typical *typical);

/* Writes a trace; never waits. The stamp is set here, all else is the caller's. */
void hg_trace_write(hg_region *region, const hg_trace *trace);

/* For views: the debt of a bucket now, in ns of CPU, and its budget's counts. */
uint64_t hg_debt_ns(const hg_region *region, uint32_t bucket, uint64_t now_ns);
hg_count *hg_count_of(hg_region *region, uint64_t budget_key, const char *name, size_t length);

/* The client's place in the table, for hg_tally_at; 0: the others'. */
uint32_t hg_tally_of(hg_region *region, const char *name, size_t length);
/* NULL: the region has no table. */
hg_tally *hg_tally_at(hg_region *region, uint32_t client);

/* ── What is said of it (report.c) ────────────────────────────────────────── */

#define HG_SAID_BY "[HEADGATE] Traffic Control: " /* every message begins so */
#define HG_ONLY_WARNS                                                                              \
    "Warn mode: the statement runs. In enforce mode it would be delayed or blocked."

/* Of a budget, on its own: the policy may be gone when it is said. */
typedef struct hg_report {
    uint64_t budget_key;
    uint64_t policy_version;
    uint64_t estimate_ns, p90_ns;
    uint64_t used, bound; /* as in hg_answer */
    uint64_t retry_ns; /* with its jitter; HG_NEVER */
    uint8_t limit; /* HG_* that decided */
    bool near_limit; /* crossed the warning threshold alone */
    bool runs; /* all the same: a warning */
    bool is_trial; /* at retry_ns one execution is admitted to learn its cost */
    char budget[64];
    char bucket[48]; /* its label, in the client's own encoding; empty: the budget's own bucket */
} hg_report;

/* `dice`: a random number, for the jitter. */
void hg_report_fill(hg_report *report, const hg_region *region, const hg_policy *policy,
                    const hg_matches *matches, const hg_ask *ask, const hg_answer *answer,
                    uint64_t dice);
/* Up to a quarter more, so that those who were blocked together do not come back together (R143). */
uint64_t hg_jittered(uint64_t retry_ns, uint64_t dice);
/* What is longer than `room` is cut. */
void hg_say_message(const hg_report *report, char *out, size_t room);
void hg_say_detail(const hg_report *report, char *out, size_t room); /* key=value, between blanks */
void hg_say_hint(const hg_report *report, char *out, size_t room);

/* Of a client that a rule, or health, throttles. `what`: "rule" or "health". */
void hg_say_client(const char *name, const char *what, const char *cause, const char *reason,
                   double ratio, uint64_t retry_ms, char *message, size_t message_room,
                   char *detail, size_t detail_room);

/* Milliseconds, rounded up. */
static inline uint64_t hg_ms(uint64_t ns)
{
    return ns / 1000000 + (ns % 1000000 != 0);
}

#endif
