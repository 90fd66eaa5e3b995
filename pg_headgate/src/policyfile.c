/*
 * policyfile.c: the policy in force, read without a connection.
 *
 *   policy.hgp, health.hgs ──stat, one backend in 5 ms──► hg_publish ──► every next statement
 *
 * The first statement of any backend after the pace has run out looks, for all. A file that cannot
 * be taken over is named once in the log, and in headgate.status(); the last good policy stays,
 * also when the file goes away. Without one, the policy of the setting is in force.
 */
#include "pg_headgate.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"

#define LOOK_EVERY_US 5000
#define MOST_AWAITED_NS 250000000
/* A statement may have begun before another one looked; beyond that, the clock was set back. */
#define CLOCK_WENT_BACK_US 1000000
#define UNIX_EPOCH_US (((int64) POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)
#define HEALTH_MAGIC "HGHEALTH"

typedef struct HealthFile
{
	char		magic[8];
	uint32		format;
	uint32		crc;
	uint32		health;
	uint32		reserved;
	int64		until_ms;
	int64		written_ms;
} HealthFile;

StaticAssertDecl(sizeof(HealthFile) == 40, "the health file's layout");

int64		gate_clock_us = 0;

/* ── Reading ──────────────────────────────────────────────────────────────── */

/* Of a file as it is now, never 0: by which file it is, when it was written, and how long it is. */
static uint64
mark_of(const struct stat *file)
{
	uint64		facts[] = {file->st_ino, file->st_size, file->st_mtim.tv_sec,
	file->st_mtim.tv_nsec};

	return hg_hash(0, facts, sizeof facts) | 1;
}

static void
path_of(const char *name, char path[MAXPGPATH])
{
	snprintf(path, MAXPGPATH, "%s/%s", gate_directory, name);
}

/* A file that is gone has not changed: the last good one stays. */
static bool
has_changed(const char *name, _Atomic uint64_t *seen)
{
	char		path[MAXPGPATH];
	struct stat file;

	path_of(name, path);
	return stat(path, &file) == 0 && mark_of(&file) != atomic_load(seen);
}

static bool
read_whole(int fd, char *into, size_t length)
{
	size_t		have = 0;

	while (have < length)
	{
		ssize_t		got = read(fd, into + have, length - have);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		have += got;
	}
	return true;
}

/* A file that could not be read may be readable at the next look, and looks the same then. */
static const char cannot_open[] = "the server cannot open it; it must belong to the server's user";
static const char no_memory[] = "out of memory";
static const char cannot_read[] = "reading it failed";

static bool
is_worth_another_try(const char *why)
{
	return why == cannot_open || why == no_memory || why == cannot_read;
}

/* Of an open file; NULL with `why`. */
static void *
read_file(int fd, size_t most, struct stat *file, const char **why)
{
	char	   *bytes = NULL;

	if (fd < 0 || fstat(fd, file) != 0)
		*why = cannot_open;
	else if (!S_ISREG(file->st_mode))
		*why = "it is not a regular file";
	else if ((size_t) file->st_size > most)
		*why = "it is larger than pg_headgate.policy_memory";
	else if ((bytes = malloc(Max(file->st_size, 8))) == NULL)
		*why = no_memory;
	else if (read_whole(fd, bytes, file->st_size))
		return bytes;
	else
		*why = cannot_read;
	free(bytes);
	return NULL;
}

/* The file, if it is another one than the one `seen`, malloc'ed; NULL with `why` NULL: it is not. */
static void *
read_if_new(const char *name, size_t most, uint64 *seen, size_t *length, const char **why)
{
	char		path[MAXPGPATH];
	struct stat file;
	void	   *bytes;
	int			fd;

	*why = NULL;
	path_of(name, path);
	if (stat(path, &file) != 0 || mark_of(&file) == *seen)
		return NULL;
	/* A pipe under that name would be waited for. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	bytes = read_file(fd, most, &file, why);
	if (fd >= 0)
		close(fd);
	*seen = mark_of(&file);
	*length = file.st_size;
	return bytes;
}

/* ── Taking over ──────────────────────────────────────────────────────────── */

static void
note_rejection(const char *why)
{
	memset(gate_region->rejection, 0, sizeof gate_region->rejection);
	strlcpy(gate_region->rejection, why, sizeof gate_region->rejection);
	atomic_fetch_add(&gate_region->rejected_policies, 1);
}

/* Says `why` once for each file. One that is worth another try is not seen: the next look finds it
 * again. */
static const char *
note_seen(_Atomic uint64_t *mark, _Atomic uint64_t *unread_mark, uint64 seen, const char *why)
{
	if (is_worth_another_try(why))
		return atomic_exchange(unread_mark, seen) == seen ? NULL : why;
	atomic_store(mark, seen);
	atomic_store(unread_mark, 0);
	return why;
}

/* Why the file was rejected; NULL: it was not, or has not changed. */
static const char *
look_at_policy(bool force)
{
	uint64		seen = atomic_load(&gate_shared->policy_mark);
	size_t		length = 0;
	const char *why;
	void	   *bytes = read_if_new("policy.hgp", gate_region->sizes.policy_bytes, &seen, &length,
								   &why);

	bool		is_read = bytes != NULL;

	if (is_read)
		why = hg_publish(gate_region, bytes, length, force, gate_clock_us / 1000);
	free(bytes);
	if (is_read && why == NULL)
		memset(gate_region->rejection, 0, sizeof gate_region->rejection);
	if (why != NULL && hg_publish_again(why))
		return NULL;			/* not seen: the next look finds it again */
	why = note_seen(&gate_shared->policy_mark, &gate_shared->policy_unread, seen, why);
	if (why != NULL && !is_read)
		note_rejection(why);
	return why;
}

static const char *
look_at_health(void)
{
	size_t		length = 0;
	const char *why;
	uint64		seen = atomic_load(&gate_shared->health_mark);
	HealthFile *file = read_if_new("health.hgs", 4096, &seen, &length, &why);
	uint32		crc;

	why = note_seen(&gate_shared->health_mark, &gate_shared->health_unread, seen, why);
	if (file == NULL)
		return why;
	crc = length == sizeof *file ? file->crc : 0;
	if (length == sizeof *file)
		file->crc = 0;
	if (length != sizeof *file || memcmp(file->magic, HEALTH_MAGIC, sizeof file->magic) != 0
		|| file->format != 1 || hg_crc32(0, file, sizeof *file) != crc || file->health < 1
		|| file->health > 2)
		why = "it is not a complete health file";
	else
		hg_tell_health(gate_region, file->health == 1, file->until_ms);
	free(file);
	return why;
}

static bool
asks_for_health(void)
{
	const hg_policy *policy = gate_enter();
	bool		asks = policy != NULL && (policy->flags & HG_POLICY_BY_HEALTH) != 0;

	if (policy != NULL)
		gate_leave();
	return asks;
}

static void
complain(const char *name, const char *why)
{
	if (why != NULL)
		ereport(LOG, errmsg("pg_headgate: rejected \"%s/%s\": %s", gate_directory, name, why),
				errdetail("The previous one stays in force."));
}

/* In the postmaster: also an older policy than that of before a crash is the right one now. */
void
gate_load_at_start(void)
{
	complain("policy.hgp", look_at_policy(true));
	complain("health.hgs", look_at_health());
}

/* Looks at the files first, so that nobody keeps others waiting without need. */
static void
look(void)
{
	const char *policy_fault;
	const char *health_fault = NULL;
	bool		by_health = asks_for_health();
	uint32_t	nobody = 0;

	if (!has_changed("policy.hgp", &gate_shared->policy_mark)
		&& !(by_health && has_changed("health.hgs", &gate_shared->health_mark)))
		return;
	if (!atomic_compare_exchange_strong(&gate_shared->taking_over, &nobody, 1))
		return;
	policy_fault = look_at_policy(false);
	if (asks_for_health())
		health_fault = look_at_health();
	atomic_store(&gate_shared->given_up, 0);
	atomic_store(&gate_shared->taking_over, 0);
	complain("policy.hgp", policy_fault);
	complain("health.hgs", health_fault);
}

/* To decide by the old policy now is what nobody wants; and on a server that is drowning, those who
 * wait leave the CPU to the one who reads. Who does not come to an end is waited for once. */
static void
await_policy(void)
{
	uint64		until_ns = gate_now_ns() + MOST_AWAITED_NS;

	while (atomic_load(&gate_shared->taking_over) != 0
		   && atomic_load(&gate_shared->given_up) == 0)
	{
		if (gate_now_ns() >= until_ns)
			atomic_store(&gate_shared->given_up, 1);
		pg_usleep(500);
	}
}

void
gate_set_clock(TimestampTz now)
{
	gate_clock_us = now + UNIX_EPOCH_US;
}

void
gate_watch(TimestampTz now)
{
	int64_t		looked = atomic_load_explicit(&gate_shared->looked_us, memory_order_relaxed);
	int64		since;

	gate_set_clock(now);
	since = gate_clock_us - looked;
	if (unlikely(since >= LOOK_EVERY_US || since <= -CLOCK_WENT_BACK_US)
		&& atomic_compare_exchange_strong(&gate_shared->looked_us, &looked, gate_clock_us))
		look();
	if (unlikely(atomic_load_explicit(&gate_shared->taking_over, memory_order_relaxed) != 0))
		await_policy();
}

/* ── The policy in force ──────────────────────────────────────────────────── */

bool
gate_file_in_force(void)
{
	return atomic_load_explicit(&gate_region->area, memory_order_relaxed) != 0;
}

static const hg_policy *
own_policy(void)
{
	hg_seat    *seat = gate_seat_of(gate_seat);

	if (gate_guc_policy == NULL
		|| atomic_load_explicit(&gate_region->enabled, memory_order_relaxed) == 0
		|| (gate_guc_policy->flags & HG_POLICY_OFF) != 0)
		return NULL;
	atomic_store_explicit(&seat->version, gate_guc_policy->version, memory_order_relaxed);
	atomic_store_explicit(&seat->crc, gate_guc_policy->crc, memory_order_relaxed);
	return gate_guc_policy;
}

/* The last policy that was found switched off, so that it need not be entered to know. */
static uint64 off_version = 0;
static uint32 off_crc = 0;

static const hg_policy *
common_policy(void)
{
	const hg_policy *policy = hg_enter(gate_region, gate_seat);
	hg_seat    *seat = gate_seat_of(gate_seat);

	if (unlikely(policy == NULL) && atomic_load(&gate_region->enabled) != 0)
	{
		off_version = atomic_load(&seat->version);
		off_crc = atomic_load(&seat->crc);
	}
	return policy;
}

const hg_policy *
gate_enter(void)
{
	return gate_file_in_force() ? common_policy() : own_policy();
}

bool
gate_nothing_in_force(void)
{
	if (atomic_load_explicit(&gate_region->enabled, memory_order_relaxed) == 0)
		return true;
	if (!gate_file_in_force())
		return gate_guc_policy == NULL;
	return off_version != 0
		&& off_version == atomic_load_explicit(&gate_region->version, memory_order_relaxed)
		&& off_crc == atomic_load_explicit(&gate_region->crc, memory_order_relaxed);
}

void
gate_leave(void)
{
	hg_leave(gate_region, gate_seat);
}
