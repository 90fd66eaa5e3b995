/*
 * bucket.c: the table of buckets, and the reckoning of one.
 *
 *   set of a key ──► its keys: two lines of the cache ──► its buckets: 16 ways
 *                    0 … 3: budgets' own alone, which are looked for first     4 … 15: any bucket
 *
 * Values that rules are for each of come from clients, who can make up as many as they like. So
 * their buckets have three quarters of a set at most, and never make a budget's own bucket forget
 * its debt; and a secret says which set a key belongs to, so that nobody can aim.
 *
 * A bucket is the time at which it will be empty; its own unit is the time in which its rate
 * drains a cost. Charges and refunds are single compare-and-swaps on that time.
 *
 * Refunds are counted twice: in refunding_ns before the time is set back, in refunded_ns after it. A
 * charge remembers the latter, its settlement reads the former. So every refund that may have
 * moved a charge in between is reckoned with, some that have not are, too, and nobody is ever
 * given back what had drained already (R110).
 */
#define _POSIX_C_SOURCE 200809L

#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define ONE_STATEMENT (UINT64_C(1) << 32)
#define SPINS 128
#define YIELDS 128
#define DRAIN_SCALE UINT64_C(100000000) /* 100 % in mpct x 1 CPU in thousandths */
#define NARROW_COST_NS UINT64_C(100000000000) /* x DRAIN_SCALE still fits in 64 bits */

/* ── Units ────────────────────────────────────────────────────────────────── */

/* Rounded up: the debt is never less than what was charged. */
uint64_t hg_drain_ns(uint64_t cost_ns, uint32_t rate_mpct, uint32_t cpus_milli)
{
    uint64_t per = (uint64_t) rate_mpct * cpus_milli;
    unsigned __int128 wide;

    if (cost_ns <= NARROW_COST_NS && per <= UINT32_MAX)
        return (cost_ns * DRAIN_SCALE + per - 1) / per;
    wide = ((unsigned __int128) cost_ns * DRAIN_SCALE + per - 1) / per;
    return wide < HG_FAR ? (uint64_t) wide : HG_FAR;
}

uint64_t hg_cpu_ns(uint64_t drains_in_ns, uint32_t rate_mpct, uint32_t cpus_milli)
{
    unsigned __int128 wide = (unsigned __int128) drains_in_ns * ((uint64_t) rate_mpct * cpus_milli)
                             / DRAIN_SCALE;

    return wide < HG_FAR ? (uint64_t) wide : HG_FAR;
}

static uint64_t rescaled(uint64_t debt_ns, uint32_t old_mpct, uint32_t new_mpct)
{
    unsigned __int128 wide = (unsigned __int128) debt_ns * old_mpct / new_mpct;

    return wide < HG_FAR ? (uint64_t) wide : HG_FAR;
}

/* ── Finding ──────────────────────────────────────────────────────────────── */

static uint32_t set_of(const hg_region *region, uint64_t key)
{
    uint64_t place = region->secret != 0 ? hg_hash_end(key ^ region->secret) : key;

    return (uint32_t) (place & (hg_plan(region)->sizes.buckets / HG_WAYS - 1));
}

static uint32_t find(const hg_region *region, uint64_t key)
{
    uint32_t first = set_of(region, key) * HG_WAYS;
    _Atomic uint64_t *keys = hg_bucket_keys_in(region) + first;

    /* Acquire: a reader of the key sees the bucket that it was put before. */
    for (uint32_t way = 0; way < HG_WAYS; way++)
        if (atomic_load_explicit(&keys[way], memory_order_acquire) == key)
            return first + way;
    return HG_NO_BUCKET;
}

static bool out_of_line(const hg_bucket *bucket, const hg_budget *budget)
{
    return atomic_load_explicit(&bucket->epoch, memory_order_relaxed) != budget->epoch
           || (hg_rate_of(budget) != 0
               && atomic_load_explicit(&bucket->rate_mpct, memory_order_relaxed)
                      != hg_rate_of(budget));
}

/* Its debt by the policy's rate and epoch, should it not have been brought in line. */
static uint64_t owed_by(const hg_bucket *bucket, const hg_budget *budget, uint64_t now_ns)
{
    uint64_t debt_ns = hg_less(atomic_load_explicit(&bucket->empty_at_ns, memory_order_acquire),
                               now_ns);
    uint32_t rate_mpct = atomic_load_explicit(&bucket->rate_mpct, memory_order_acquire);

    if (debt_ns == 0 || !hg_is_timed(budget))
        return 0;
    if (atomic_load_explicit(&bucket->epoch, memory_order_acquire) != budget->epoch)
        return 0;
    if (rate_mpct == budget->rate_mpct)
        return debt_ns;
    return rescaled(debt_ns, rate_mpct, budget->rate_mpct);
}

/* ── The lock of a set ────────────────────────────────────────────────────── */

static bool try_lock(_Atomic uint32_t *lock, uint32_t pid)
{
    uint32_t nobody = 0;

    return atomic_load_explicit(lock, memory_order_relaxed) == 0
           && atomic_compare_exchange_strong_explicit(lock, &nobody, pid, memory_order_acquire,
                                                      memory_order_relaxed);
}

/* Bounded: its holder may have been put to sleep, or be dead (hg_process_gone). Who does not get
 * it goes on without the bucket. */
static bool lock_set(hg_region *region, uint32_t set)
{
    _Atomic uint32_t *lock = &hg_bucket_locks_in(region)[set];
    uint32_t pid = (uint32_t) getpid();

    for (int i = 0; i < SPINS; i++)
        if (try_lock(lock, pid))
            return true;
    for (int i = 0; i < YIELDS; i++) {
        if (try_lock(lock, pid))
            return true;
        sched_yield();
    }
    return false;
}

static void unlock_set(hg_region *region, uint32_t set)
{
    atomic_store_explicit(&hg_bucket_locks_in(region)[set], 0, memory_order_release);
}

/* ── Holding ──────────────────────────────────────────────────────────────── */

static uint32_t add_holder(hg_bucket *bucket, uint32_t workers)
{
    return (uint32_t) atomic_fetch_add(&bucket->holders, ONE_STATEMENT + workers);
}

void hg_bucket_release(hg_region *region, uint32_t index, uint32_t workers)
{
    /* Release: an evictor that sees nobody sees the last charge and refund, too. */
    atomic_fetch_sub_explicit(&hg_bucket_in(region, index)->holders, ONE_STATEMENT + workers,
                              memory_order_release);
}

/* First the pin, then the key again: see the head of internal.h. */
static bool pin(hg_region *region, uint32_t index, uint64_t key, uint32_t workers,
                uint32_t *running)
{
    *running = add_holder(hg_bucket_in(region, index), workers);
    if (atomic_load(&hg_bucket_keys_in(region)[index]) == key)
        return true;
    hg_bucket_release(region, index, workers);
    return false;
}

/* The workers alone: the statement goes on holding the bucket in its place. */
void hg_bucket_enter(hg_region *region, uint32_t index, uint32_t workers)
{
    atomic_fetch_add_explicit(&hg_bucket_in(region, index)->holders, workers, memory_order_relaxed);
}

void hg_bucket_leave(hg_region *region, uint32_t index, uint32_t workers)
{
    atomic_fetch_sub_explicit(&hg_bucket_in(region, index)->holders, workers, memory_order_relaxed);
}

/* What has to give way, the cheapest first (R112). */
typedef enum room {
    RESERVED,  /* nothing: a free way that only a budget's own bucket may have */
    FREE,
    EMPTY,
    EMPTY_OWN,
    OWING,     /* forgiven */
    OWING_OWN, /* forgiven, but never for the sake of a value that a client may have made up */
    NO_ROOM
} room;

typedef struct choice {
    room room;
    uint32_t way;
    uint64_t empty_at_ns;
} choice;

static bool is_own(const hg_terms *terms)
{
    return terms->key == terms->budget->key;
}

static room room_of(const hg_bucket *bucket, uint64_t key, uint64_t empty_at_ns,
                    const hg_terms *terms)
{
    if (atomic_load_explicit(&bucket->holders, memory_order_relaxed) >= ONE_STATEMENT)
        return NO_ROOM;
    if (empty_at_ns <= terms->now_ns)
        return key == bucket->budget_key ? EMPTY_OWN : EMPTY;
    if (key != bucket->budget_key)
        return OWING;
    return is_own(terms) ? OWING_OWN : NO_ROOM;
}

/* Of the cheapest kind the one that has been empty for longest, or will be soonest. */
static choice choose_way(hg_region *region, uint32_t first, const hg_terms *terms, uint32_t tried)
{
    choice best = {NO_ROOM, 0, 0};

    for (uint32_t way = is_own(terms) ? 0 : HG_OWN_WAYS; way < HG_WAYS; way++) {
        uint64_t key = atomic_load_explicit(&hg_bucket_keys_in(region)[first + way],
                                            memory_order_relaxed);
        const hg_bucket *bucket = hg_bucket_in(region, first + way);
        choice this = {way < HG_OWN_WAYS ? RESERVED : FREE, way, 0};

        if (tried >> way & 1)
            continue;
        if (key != HG_FREE_KEY) {
            this.empty_at_ns = atomic_load_explicit(&bucket->empty_at_ns, memory_order_relaxed);
            this.room = room_of(bucket, key, this.empty_at_ns, terms);
        }
        if (this.room < best.room
            || (this.room == best.room && this.empty_at_ns < best.empty_at_ns))
            best = this;
    }
    return best;
}

static void count_forgiven(hg_region *region, const hg_bucket *bucket, uint64_t debt_ns,
                           bool evicted)
{
    uint32_t rate_mpct = atomic_load_explicit(&bucket->rate_mpct, memory_order_relaxed);
    hg_count *count = debt_ns > 0 ? hg_count_find(region, bucket->budget_key) : NULL;

    if (count == NULL)
        return;
    hg_add(&count->forgiven_ns, hg_cpu_ns(debt_ns, rate_mpct, hg_plan(region)->cpus_milli));
    hg_add(&count->evicted, evicted);
}

/* Takes the key away, then looks whether anybody holds it all the same, or has been charged since
 * it was chosen as one without debt. */
static bool empty_way(hg_region *region, uint32_t index, room kind, uint64_t now_ns)
{
    _Atomic uint64_t *key = &hg_bucket_keys_in(region)[index];
    hg_bucket *bucket = hg_bucket_in(region, index);
    uint64_t old = atomic_load_explicit(key, memory_order_relaxed);
    uint64_t debt_ns;

    if (old == HG_FREE_KEY)
        return true;
    atomic_store(key, HG_TAKEN_KEY);
    if (atomic_load(&bucket->holders) >= ONE_STATEMENT) {
        atomic_store(key, old);
        return false;
    }
    debt_ns = hg_less(atomic_load_explicit(&bucket->empty_at_ns, memory_order_relaxed), now_ns);
    if (debt_ns > 0 && kind < OWING) {
        atomic_store(key, old);
        return false;
    }
    if (old != HG_TAKEN_KEY) /* else a process died in the midst of this */
        count_forgiven(region, bucket, debt_ns, true);
    return true;
}

static void tell_refund(_Atomic uint64_t *told, uint64_t amount)
{
    atomic_fetch_add_explicit(told, amount, memory_order_release);
}

/* The holders are left alone: a pinner that is about to see that it came too late may be among
 * them, and will take itself out again. */
static void fill_way(hg_bucket *bucket, const hg_terms *terms)
{
    const hg_match_one *match = terms->match;

    atomic_store_explicit(&bucket->empty_at_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&bucket->refunding_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&bucket->refunded_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&bucket->rate_mpct, hg_rate_of(terms->budget), memory_order_relaxed);
    atomic_store_explicit(&bucket->epoch, terms->budget->epoch, memory_order_relaxed);
    atomic_store_explicit(&bucket->admitted, 0, memory_order_relaxed);
    bucket->budget_key = terms->budget->key;
    bucket->label_length = match->label_length;
    memcpy(bucket->label, match->label, sizeof match->label);
}

/* Under the set's lock. */
static uint32_t insert(hg_region *region, const hg_terms *terms, uint32_t *running)
{
    uint32_t first = set_of(region, terms->key) * HG_WAYS;
    uint32_t tried = 0;

    for (uint32_t round = 0; round < HG_WAYS; round++) {
        choice chosen = choose_way(region, first, terms, tried);
        uint32_t index = first + chosen.way;

        if (chosen.room == NO_ROOM)
            return HG_NO_BUCKET;
        if (empty_way(region, index, chosen.room, terms->now_ns)) {
            fill_way(hg_bucket_in(region, index), terms);
            *running = add_holder(hg_bucket_in(region, index), terms->workers);
            atomic_store_explicit(&hg_bucket_keys_in(region)[index], terms->key,
                                  memory_order_release);
            return index;
        }
        tried |= 1u << chosen.way;
    }
    return HG_NO_BUCKET;
}

static uint32_t find_or_insert(hg_region *region, const hg_terms *terms, uint32_t *running)
{
    uint32_t set = set_of(region, terms->key);
    uint32_t index;

    if (!lock_set(region, set))
        return HG_NO_BUCKET;
    index = find(region, terms->key);
    if (index == HG_NO_BUCKET)
        index = insert(region, terms, running);
    else /* cannot be evicted: that needs the lock */
        *running = add_holder(hg_bucket_in(region, index), terms->workers);
    unlock_set(region, set);
    return index;
}

/* Counts as refunded: what was charged before is gone, and must not be given back again out of
 * what others are charged later. */
static void forgive(hg_region *region, hg_bucket *bucket, uint64_t now_ns)
{
    uint64_t old = atomic_load_explicit(&bucket->empty_at_ns, memory_order_acquire);
    uint64_t told = 0;

    do { /* a charge in between is forgiven with the rest */
        if (hg_less(old, now_ns) > told) {
            tell_refund(&bucket->refunding_ns, hg_less(old, now_ns) - told);
            told = hg_less(old, now_ns);
        }
    } while (!atomic_compare_exchange_weak_explicit(&bucket->empty_at_ns, &old, now_ns,
                                                    memory_order_acq_rel, memory_order_acquire));
    tell_refund(&bucket->refunded_ns, told);
    count_forgiven(region, bucket, hg_less(old, now_ns), false);
}

static void rescale(hg_bucket *bucket, uint32_t rate_mpct, uint64_t now_ns)
{
    uint32_t before = atomic_load_explicit(&bucket->rate_mpct, memory_order_relaxed);
    uint64_t old = atomic_load_explicit(&bucket->empty_at_ns, memory_order_acquire);
    uint64_t told = 0;
    uint64_t debt_ns, same_ns;

    do { /* what it is set back by counts as refunded: charges from before lie earlier now */
        debt_ns = hg_less(old, now_ns);
        same_ns = rescaled(debt_ns, before, rate_mpct);
        if (hg_less(debt_ns, same_ns) > told) {
            tell_refund(&bucket->refunding_ns, hg_less(debt_ns, same_ns) - told);
            told = hg_less(debt_ns, same_ns);
        }
    } while (!atomic_compare_exchange_weak_explicit(&bucket->empty_at_ns, &old, now_ns + same_ns,
                                                    memory_order_acq_rel, memory_order_acquire));
    tell_refund(&bucket->refunded_ns, told);
    /* A charge between these two is by the other rate: once, at a change of policy. */
    atomic_store_explicit(&bucket->rate_mpct, rate_mpct, memory_order_release);
}

static bool bring_in_line(hg_region *region, hg_bucket *bucket, const hg_terms *terms)
{
    const hg_budget *budget = terms->budget;
    uint32_t set = set_of(region, terms->key);

    if (!lock_set(region, set))
        return false;
    if (atomic_load_explicit(&bucket->epoch, memory_order_relaxed) != budget->epoch) {
        forgive(region, bucket, terms->now_ns);
        atomic_store_explicit(&bucket->epoch, budget->epoch, memory_order_release);
    }
    if (out_of_line(bucket, budget))
        rescale(bucket, budget->rate_mpct, terms->now_ns);
    unlock_set(region, set);
    return true;
}

/* Once for a change of policy: the debt drains by the new rate from the first look on, even if
 * the statement that looks is blocked. That changes no debt (R104). */
static void take_over(hg_region *region, uint32_t index, const hg_terms *terms)
{
    uint32_t running;

    if (!pin(region, index, terms->key, 0, &running))
        return;
    bring_in_line(region, hg_bucket_in(region, index), terms);
    hg_bucket_release(region, index, 0);
}

void hg_bucket_look_up(hg_region *region, const hg_terms *terms, hg_lookup *lookup)
{
    uint32_t index = find(region, terms->key);
    hg_bucket *bucket;

    lookup->index = HG_NO_BUCKET;
    lookup->running = 0;
    lookup->debt_ns = 0;
    if (index == HG_NO_BUCKET)
        return;
    bucket = hg_bucket_in(region, index);
    if (out_of_line(bucket, terms->budget))
        take_over(region, index, terms);
    lookup->running = (uint32_t) atomic_load_explicit(&bucket->holders, memory_order_acquire);
    lookup->debt_ns = owed_by(bucket, terms->budget, terms->now_ns);
    /* Looked at without a pin: it may have become another's meanwhile. */
    if (atomic_load_explicit(&hg_bucket_keys_in(region)[index], memory_order_relaxed)
        == terms->key) {
        lookup->index = index;
        return;
    }
    lookup->running = 0;
    lookup->debt_ns = 0;
}

uint32_t hg_bucket_hold(hg_region *region, const hg_terms *terms, uint32_t hint, uint32_t *running)
{
    uint32_t index = hint;
    hg_bucket *bucket;

    if (index == HG_NO_BUCKET || !pin(region, index, terms->key, terms->workers, running))
        index = find_or_insert(region, terms, running);
    if (index == HG_NO_BUCKET)
        return HG_NO_BUCKET;
    bucket = hg_bucket_in(region, index);
    if (!out_of_line(bucket, terms->budget) || bring_in_line(region, bucket, terms))
        return index;
    hg_bucket_release(region, index, terms->workers);
    return HG_NO_BUCKET;
}

/* ── Reckoning ────────────────────────────────────────────────────────────── */

static uint64_t later(uint64_t empty_at_ns, uint64_t now_ns, uint64_t drains_in_ns)
{
    return hg_least(hg_most(empty_at_ns, now_ns) + drains_in_ns, 2 * HG_FAR);
}

bool hg_bucket_charge(hg_bucket *bucket, uint64_t now_ns, uint64_t drains_in_ns, uint64_t size_ns,
                      hg_holding_one *one, uint64_t *debt_ns)
{
    /* Before the time is read: a refund that this knows of has moved that time already. */
    uint64_t refunded = atomic_load_explicit(&bucket->refunded_ns, memory_order_acquire);
    uint64_t old = atomic_load_explicit(&bucket->empty_at_ns, memory_order_acquire);
    uint64_t after;

    do {
        *debt_ns = hg_less(old, now_ns);
        if (*debt_ns + drains_in_ns > size_ns)
            return false;
        after = later(old, now_ns, drains_in_ns);
    } while (!atomic_compare_exchange_weak_explicit(&bucket->empty_at_ns, &old, after,
                                                    memory_order_acq_rel, memory_order_acquire));
    one->charged = true;
    one->charged_ns = drains_in_ns;
    one->after_ns = after;
    one->refunded_ns = refunded;
    return true;
}

void hg_bucket_charge_more(hg_bucket *bucket, uint64_t now_ns, uint64_t drains_in_ns)
{
    uint64_t old = atomic_load_explicit(&bucket->empty_at_ns, memory_order_acquire);

    while (!atomic_compare_exchange_weak_explicit(&bucket->empty_at_ns, &old,
                                                  later(old, now_ns, drains_in_ns),
                                                  memory_order_acq_rel, memory_order_acquire))
        ;
}

/* What of a charge cannot have drained yet, whatever else was given back since. */
static uint64_t remaining(const hg_bucket *bucket, const hg_holding_one *one, uint64_t own_ns,
                          uint64_t now_ns)
{
    uint64_t told = atomic_load_explicit(&bucket->refunding_ns, memory_order_acquire) - own_ns;
    __int128 since = (__int128) told - one->refunded_ns;
    __int128 left = (__int128) one->after_ns - since - now_ns;

    return left <= 0 ? 0 : left < one->charged_ns ? (uint64_t) left : one->charged_ns;
}

void hg_bucket_refund(hg_bucket *bucket, const hg_holding_one *one, uint64_t cheaper_ns,
                      uint64_t now_ns)
{
    /* The time first, then the refunds: they were counted before it was set back. */
    uint64_t old = atomic_load_explicit(&bucket->empty_at_ns, memory_order_acquire);
    uint64_t told = 0;
    uint64_t back;

    if (old <= now_ns)
        return; /* all has drained */
    do {
        back = hg_least(cheaper_ns, hg_least(remaining(bucket, one, told, now_ns), old));
        if (back > told) {
            tell_refund(&bucket->refunding_ns, back - told);
            told = back;
        }
    } while (!atomic_compare_exchange_weak_explicit(&bucket->empty_at_ns, &old, old - back,
                                                    memory_order_acq_rel, memory_order_acquire));
    if (told > 0) /* as it was counted before, even if less came of it: both must be equal */
        tell_refund(&bucket->refunded_ns, told);
}

void hg_bucket_undo(hg_bucket *bucket, const hg_holding_one *one)
{
    uint64_t old = atomic_load_explicit(&bucket->empty_at_ns, memory_order_acquire);
    uint64_t back = one->charged_ns;

    tell_refund(&bucket->refunding_ns, back);
    while (!atomic_compare_exchange_weak_explicit(&bucket->empty_at_ns, &old, hg_less(old, back),
                                                  memory_order_acq_rel, memory_order_acquire))
        ;
    tell_refund(&bucket->refunded_ns, back);
}

uint64_t hg_debt_ns(const hg_region *region, uint32_t index, uint64_t now_ns)
{
    const hg_bucket *bucket;

    if (index >= hg_plan(region)->sizes.buckets
        || atomic_load_explicit(&hg_bucket_keys_in(region)[index], memory_order_acquire)
               <= HG_TAKEN_KEY)
        return 0;
    bucket = hg_bucket_in(region, index);
    return hg_cpu_ns(
        hg_less(atomic_load_explicit(&bucket->empty_at_ns, memory_order_relaxed), now_ns),
        atomic_load_explicit(&bucket->rate_mpct, memory_order_relaxed),
        hg_plan(region)->cpus_milli);
}
