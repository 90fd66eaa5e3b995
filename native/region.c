/*
 * region.c: the flat memory that all who decide share, and the policy in force in it.
 *
 *   hg_publish ──► area 1 │ area 2 ◄── hg_enter … hg_leave
 *
 * There are two areas. The one in force is never written; the other one is written only while no
 * seat has announced that it reads there. A reader announces the area, then looks again whether it
 * still is the one in force; a publisher changes the area in force, and before the next
 * publication looks at all announcements. All four accesses are sequentially consistent: of a
 * reader that announces late and a publisher that looks early at least one sees the other.
 */
#define _POSIX_C_SOURCE 200809L

#include <string.h>
#include <unistd.h>

#include "internal.h"

#define PAGE 4096u
#define MAX_SEATS (1u << 16)
#define MAX_BUCKETS (1u << 24)
#define MAX_PATTERNS (1u << 22)
#define MAX_TRACES (1u << 20)
#define MAX_CLIENTS (1u << 16)
#define MAX_AREA (1u << 30)

static const char busy_publisher[] = "another publication is under way: try again";
static const char busy_reader[] = "the last policy but one is still being read: try again";

static bool is_power_of_two(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

static bool sound_sizes(const hg_sizes *sizes)
{
    return sizes->seats >= 1 && sizes->seats <= MAX_SEATS && is_power_of_two(sizes->budgets)
           && sizes->budgets <= HG_MAX_BUDGETS * 2 && is_power_of_two(sizes->buckets)
           && sizes->buckets >= HG_WAYS && sizes->buckets <= MAX_BUCKETS
           && is_power_of_two(sizes->patterns) && sizes->patterns >= HG_PATTERN_WAYS
           && sizes->patterns <= MAX_PATTERNS && sizes->policy_bytes % PAGE == 0
           && sizes->policy_bytes >= PAGE && sizes->policy_bytes <= MAX_AREA
           && (sizes->traces == 0 || is_power_of_two(sizes->traces)) && sizes->traces <= MAX_TRACES
           && (sizes->clients == 0 || is_power_of_two(sizes->clients))
           && sizes->clients <= MAX_CLIENTS;
}

/* Where the next part begins: every part on a page of its own, so that none shares a line. */
static uint64_t part(uint64_t *end, uint64_t count, size_t size)
{
    uint64_t at = *end;

    *end = (at + count * size + PAGE - 1) / PAGE * PAGE;
    return at;
}

static void lay_out(hg_region *region, const hg_sizes *sizes)
{
    uint64_t end = 0;

    part(&end, 1, sizeof(hg_region));
    region->sizes = *sizes;
    region->seats_at = part(&end, sizes->seats, sizeof(hg_seat));
    region->counts_at = part(&end, sizes->budgets, sizeof(hg_count));
    region->bucket_keys_at = part(&end, sizes->buckets, sizeof(uint64_t));
    region->bucket_locks_at = part(&end, sizes->buckets / HG_WAYS, sizeof(uint32_t));
    region->buckets_at = part(&end, sizes->buckets, sizeof(hg_bucket));
    region->patterns_at = part(&end, sizes->patterns, sizeof(hg_pattern));
    region->traces_at = part(&end, sizes->traces, sizeof(hg_trace));
    region->clients_at = part(&end, sizes->clients, sizeof(hg_tally));
    region->areas_at[0] = part(&end, 1, sizes->policy_bytes);
    region->areas_at[1] = part(&end, 1, sizes->policy_bytes);
    region->end_at = end;
    region->length = end;
}

size_t hg_region_bytes(const hg_sizes *sizes)
{
    hg_region plan;

    if (!sound_sizes(sizes))
        return 0;
    lay_out(&plan, sizes);
    return (size_t) plan.length;
}

const char *hg_region_init(void *memory, size_t length, const hg_sizes *sizes, uint32_t cpus_milli,
                           uint32_t workers, uint64_t now_ns, int64_t wall_ms)
{
    hg_region *region = memory;
    size_t needed = hg_region_bytes(sizes);

    if (needed == 0)
        return "sizes that no region has";
    if (length < needed)
        return "less memory than the sizes ask for";
    if ((uintptr_t) memory % 64 != 0)
        return "memory that is not aligned to 64 bytes";
    if (cpus_milli == 0 || workers == 0)
        return "a server without CPUs or without workers";
    memset(memory, 0, needed);
    lay_out(region, sizes);
    region->format = HG_REGION_FORMAT;
    region->cpus_milli = cpus_milli;
    region->workers = workers;
    region->started_ns = now_ns;
    region->started_ms = (uint64_t) wall_ms;
    atomic_store_explicit(&region->enabled, 1, memory_order_relaxed);
    /* Last: a process that maps the region early finds none yet, instead of half of one. */
    memcpy(region->magic, HG_REGION_MAGIC, sizeof region->magic);
    return NULL;
}

void hg_region_keyed(hg_region *region, uint64_t secret)
{
    region->secret = secret;
}

static bool same_places(const hg_region *a, const hg_region *b)
{
    return a->length == b->length && a->seats_at == b->seats_at && a->counts_at == b->counts_at
           && a->bucket_keys_at == b->bucket_keys_at && a->bucket_locks_at == b->bucket_locks_at
           && a->buckets_at == b->buckets_at && a->patterns_at == b->patterns_at
           && a->traces_at == b->traces_at && a->clients_at == b->clients_at
           && a->areas_at[0] == b->areas_at[0] && a->areas_at[1] == b->areas_at[1]
           && a->end_at == b->end_at;
}

static const char *check_head(const hg_region *region, size_t length)
{
    hg_region plan;

    if (memcmp(region->magic, HG_REGION_MAGIC, sizeof region->magic) != 0)
        return "not a region";
    if (region->format != HG_REGION_FORMAT)
        return "a format of region that this version does not read";
    if (!sound_sizes(&region->sizes) || region->cpus_milli == 0 || region->workers == 0)
        return "sizes that no region has";
    lay_out(&plan, &region->sizes);
    if (!same_places(region, &plan))
        return "its parts do not lie where its sizes put them";
    return plan.length <= length ? NULL : "shorter than its sizes say";
}

/* Of a copy: others that share the memory may write to it meanwhile. */
const char *hg_region_check(const void *memory, size_t length)
{
    hg_region head;

    if (length < sizeof head)
        return "shorter than the head of a region";
    memcpy(&head, memory, sizeof head);
    return check_head(&head, length);
}

/* ── Pinned regions ───────────────────────────────────────────────────────── */

/* Taken and given back by one thread at a time; looked up by any. */
static struct {
    _Atomic(const hg_region *) region;
    hg_region plan;
} pins[HG_MAX_PINS];

_Atomic uint32_t hg_pins;

const char *hg_region_pin(const void *memory, size_t length)
{
    hg_region head;
    const char *why;

    if (length < sizeof head)
        return "shorter than the head of a region";
    memcpy(&head, memory, sizeof head);
    why = check_head(&head, length);
    if (why != NULL)
        return why;
    hg_region_unpin(memory);
    for (uint32_t i = 0; i < HG_MAX_PINS; i++) {
        if (atomic_load(&pins[i].region) != NULL)
            continue;
        memcpy(&pins[i].plan, &head, sizeof head);
        atomic_store(&pins[i].region, memory);
        atomic_fetch_add(&hg_pins, 1);
        return NULL;
    }
    return "more regions than one process can have";
}

void hg_region_unpin(const void *memory)
{
    for (uint32_t i = 0; i < HG_MAX_PINS; i++)
        if (atomic_load(&pins[i].region) == memory) {
            atomic_store(&pins[i].region, NULL);
            atomic_fetch_sub(&hg_pins, 1);
        }
}

const hg_region *hg_pinned(const hg_region *region)
{
    for (uint32_t i = 0; i < HG_MAX_PINS; i++)
        if (atomic_load_explicit(&pins[i].region, memory_order_acquire) == region)
            return &pins[i].plan;
    return region;
}

/* ── Publication ──────────────────────────────────────────────────────────── */

static bool being_read(hg_region *region, uint32_t area)
{
    hg_seat *seats = hg_seats_in(region);

    for (uint32_t i = 0; i < hg_plan(region)->sizes.seats; i++)
        if (atomic_load(&seats[i].using_area) == area)
            return true;
    return false;
}

static const char *older(const hg_region *region, const hg_policy *policy, bool force)
{
    if (force || atomic_load(&region->area) == 0)
        return NULL;
    if (policy->version > atomic_load(&region->version))
        return NULL;
    return "not newer than the policy in force";
}

static bool in_force(const hg_region *region, const hg_policy *policy)
{
    return atomic_load(&region->area) != 0 && policy->version == atomic_load(&region->version)
           && policy->crc == atomic_load(&region->crc);
}

/* Copied before it is checked: the bytes may lie in a file that another process still changes. */
static const char *fill(hg_region *region, uint32_t area, const void *bytes, size_t length,
                        bool force)
{
    hg_policy *policy = hg_at(region, hg_plan(region)->areas_at[area - 1]);
    const char *why;

    if (length > hg_plan(region)->sizes.policy_bytes)
        return "larger than the memory for policies";
    if (length < sizeof *policy)
        return "shorter than the head of a policy";
    memcpy(policy, bytes, length);
    why = hg_policy_check(policy, length);
    if (why == NULL && !in_force(region, policy))
        why = older(region, policy, force);
    return why;
}

static void put_in_force(hg_region *region, uint32_t area, int64_t wall_ms)
{
    const hg_policy *policy = hg_at(region, hg_plan(region)->areas_at[area - 1]);

    if (in_force(region, policy))
        return;
    atomic_store(&region->version, policy->version);
    atomic_store(&region->crc, policy->crc);
    atomic_store(&region->published_ms, wall_ms);
    atomic_store(&region->area,
                 area); /* the policy's bytes are before this, for every reader of it */
}

static void note_rejection(hg_region *region, const char *why)
{
    size_t length = strlen(why);

    if (length >= sizeof region->rejection)
        length = sizeof region->rejection - 1;
    memcpy(region->rejection, why, length);
    memset(region->rejection + length, 0, sizeof region->rejection - length);
    atomic_fetch_add(&region->rejected_policies, 1);
}

const char *hg_publish(hg_region *region, const void *bytes, size_t length, bool force,
                       int64_t wall_ms)
{
    uint32_t nobody = 0;
    uint32_t area;
    const char *why = busy_reader;

    /* Locked by the process's number, so that hg_process_gone can unlock it. */
    if (!atomic_compare_exchange_strong(&region->publishing, &nobody, (uint32_t) getpid()))
        return busy_publisher;
    area = atomic_load(&region->area) == 1 ? 2 : 1;
    if (!being_read(region, area)) {
        why = fill(region, area, bytes, length, force);
        if (why == NULL)
            put_in_force(region, area, wall_ms);
        else
            note_rejection(region, why);
    }
    atomic_store(&region->publishing, 0);
    return why;
}

bool hg_publish_again(const char *why)
{
    return why == busy_publisher || why == busy_reader;
}

static void note_policy(hg_seat *seat, const hg_policy *policy)
{
    if (atomic_load_explicit(&seat->version, memory_order_relaxed) == policy->version
        && atomic_load_explicit(&seat->crc, memory_order_relaxed) == policy->crc)
        return;
    atomic_store_explicit(&seat->version, policy->version, memory_order_relaxed);
    atomic_store_explicit(&seat->crc, policy->crc, memory_order_relaxed);
}

const hg_policy *hg_enter(hg_region *region, uint32_t seat_index)
{
    hg_seat *seat = hg_seats_in(region) + seat_index;
    uint32_t area = atomic_load_explicit(&region->area, memory_order_relaxed);
    uint32_t again;
    const hg_policy *policy;

    if (area == 0 || atomic_load_explicit(&region->enabled, memory_order_relaxed) == 0)
        return NULL;
    /* Round again once for every publication that comes in between: a handful of a lifetime. */
    for (;; area = again) {
        atomic_store(&seat->using_area, area);
        again = atomic_load(&region->area);
        if (again == area)
            break;
    }
    policy = hg_at(region, hg_plan(region)->areas_at[area - 1]);
    note_policy(seat, policy);
    if ((policy->flags & HG_POLICY_OFF) == 0)
        return policy;
    hg_leave(region, seat_index);
    return NULL;
}

void hg_leave(hg_region *region, uint32_t seat)
{
    /* Release: what was read here was read before a publisher sees the area free. */
    atomic_store_explicit(&hg_seats_in(region)[seat].using_area, 0, memory_order_release);
}

/* ── Seats ────────────────────────────────────────────────────────────────── */

void hg_seat_take(hg_region *region, uint32_t seat_index, uint32_t pid)
{
    hg_seat *seat = hg_seats_in(region) + seat_index;

    atomic_store(&seat->using_area, 0);
    atomic_store(&seat->version, 0);
    atomic_store(&seat->crc, 0);
    atomic_store(&seat->worker_ns, 0);
    atomic_store(&seat->pid, pid);
}

/* What it has counted stays: sums over all seats must not fall. */
void hg_seat_free(hg_region *region, uint32_t seat_index)
{
    hg_seat *seat = hg_seats_in(region) + seat_index;

    atomic_store(&seat->worker_ns, 0);
    atomic_store(&seat->using_area, 0);
    atomic_store(&seat->pid, 0);
}

static void unlock_if_held_by(_Atomic uint32_t *lock, uint32_t pid)
{
    atomic_compare_exchange_strong(lock, &pid, 0);
}

void hg_process_gone(hg_region *region, uint32_t pid)
{
    hg_seat *seats = hg_seats_in(region);

    if (pid == 0)
        return;
    for (uint32_t i = 0; i < hg_plan(region)->sizes.seats; i++)
        if (atomic_load(&seats[i].pid) == pid)
            hg_seat_free(region, i);
    for (uint32_t i = 0; i < hg_plan(region)->sizes.buckets / HG_WAYS; i++)
        unlock_if_held_by(&hg_bucket_locks_in(region)[i], pid);
    unlock_if_held_by(&region->publishing, pid);
}

/* ── Health ───────────────────────────────────────────────────────────────── */

int hg_healthy(const hg_region *region, int64_t wall_ms)
{
    /* The end is written last and read first: a new end never comes with an old health. */
    int64_t until_ms = atomic_load_explicit(&region->health_until_ms, memory_order_acquire);
    uint32_t health = atomic_load_explicit(&region->health, memory_order_relaxed);

    if (health == 0 || wall_ms >= until_ms)
        return -1;
    return health == 1;
}

void hg_tell_health(hg_region *region, bool healthy, int64_t until_ms)
{
    atomic_store_explicit(&region->health, healthy ? 1 : 2, memory_order_relaxed);
    atomic_store_explicit(&region->health_until_ms, until_ms, memory_order_release);
}

/* ── For readers in other languages ───────────────────────────────────────── */

#define FIELD(type, field) offsetof(type, field)

/* In the order of src/headgate/budgets/native/layout.py. */
size_t hg_layout(uint32_t which)
{
    static const size_t all[] = {
        sizeof(hg_region),
        sizeof(hg_sizes),
        sizeof(hg_seat),
        sizeof(hg_count),
        sizeof(hg_bucket),
        sizeof(hg_pattern),
        sizeof(hg_line),
        sizeof(hg_trace),
        sizeof(hg_matches),
        sizeof(hg_ask),
        sizeof(hg_answer),
        sizeof(hg_holding),
        sizeof(hg_holding_one),
        sizeof(hg_budget),
        sizeof(hg_tally),
        sizeof(hg_identity),
        FIELD(hg_region, sizes),
        FIELD(hg_region, seats_at),
        FIELD(hg_region, area),
        FIELD(hg_region, health),
        FIELD(hg_region, secret),
        FIELD(hg_region, host),
        FIELD(hg_region, rejection),
        FIELD(hg_seat, version),
        FIELD(hg_seat, left_out),
        FIELD(hg_count, warned),
        FIELD(hg_count, blocked),
        FIELD(hg_count, last_violation_ms),
        FIELD(hg_count, name),
        FIELD(hg_bucket, holders),
        FIELD(hg_bucket, budget_key),
        FIELD(hg_bucket, label),
        FIELD(hg_pattern, calls),
        FIELD(hg_pattern, query_id),
        FIELD(hg_pattern, shapes),
        FIELD(hg_trace, plan_cost),
        FIELD(hg_trace, text),
        FIELD(hg_matches, at),
        FIELD(hg_ask, workers),
        FIELD(hg_answer, match),
        FIELD(hg_answer, estimate_ns),
        FIELD(hg_holding, at),
        FIELD(hg_holding_one, index),
        FIELD(hg_holding_one, charged),
        FIELD(hg_budget, capacity_mpcts),
        FIELD(hg_policy, budgets),
    };

    return which < sizeof all / sizeof *all ? all[which] : 0;
}
