/*
 * region.c: the memory that all backends share, and that others read without a connection.
 *
 *   postmaster: memfd (sealed) ──mmap MAP_SHARED──► inherited by every backend
 *   others:     server.json ──pid, fd──► /proc/<pid>/fd/<n>
 *
 * A memfd, because the server's own shared memory has no name that an outsider could open. All of
 * it is allocated at the start: a page that is missing later would be a SIGBUS in a backend, and
 * that is a restart of the whole server. After a crash the same mapping is made again, so readers
 * need not map it again.
 */
#include "pg_headgate.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "miscadmin.h"
#include "postmaster/postmaster.h"
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

#define NO_SEAT UINT32_MAX

hg_region  *gate_region = NULL;
GateShared *gate_shared = NULL;
uint32		gate_seat = NO_SEAT;

static int	region_fd = -1;
static size_t region_length = 0;

void
gate_request_memory(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(GateShared)));
}

static uint32
power_of_two(uint32 at_least)
{
	uint32		power = 1;

	while (power < at_least)
		power *= 2;
	return power;
}

#define CLIENTS 1024			/* whose decisions are counted by name */

static hg_sizes
chosen_sizes(void)
{
	return (hg_sizes) {
		.seats = ProcGlobal->allProcCount,
		.budgets = power_of_two(gate_budgets),
		.buckets = power_of_two(gate_buckets),
		.patterns = power_of_two(gate_patterns),
		.traces = gate_traces == 0 ? 0 : power_of_two(gate_traces),
		.clients = CLIENTS,
		.policy_bytes = (uint32) (gate_policy_kb + 3) / 4 * 4096,
	};
}

/* ── CPUs ─────────────────────────────────────────────────────────────────── */

/* Of the control group with that folder, in thousandths; 0: no quota is set there. */
static uint32
quota_milli(const char *folder)
{
	char		path[MAXPGPATH];
	long long	quota,
				period;
	FILE	   *file;
	int			read;

	snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", folder);
	file = fopen(path, "r");
	if (file == NULL)
		return 0;
	read = fscanf(file, "%lld %lld", &quota, &period);
	fclose(file);
	if (read != 2 || quota <= 0 || period <= 0)
		return 0;
	return (uint32) Max(1, quota * 1000 / period);
}

/* The smallest of our group and those above it, at most `cpus_milli`. */
static uint32
within_quota(uint32 cpus_milli)
{
	char		folder[MAXPGPATH] = "";
	FILE	   *file = fopen("/proc/self/cgroup", "r");
	char		line[MAXPGPATH];
	char	   *slash;

	while (file != NULL && fgets(line, sizeof line, file) != NULL)
		if (strncmp(line, "0::", 3) == 0)
			strlcpy(folder, line + 3, sizeof folder);
	if (file != NULL)
		fclose(file);
	folder[strcspn(folder, "\n")] = '\0';
	for (;;)
	{
		uint32		quota = quota_milli(folder);

		if (quota > 0)
			cpus_milli = Min(cpus_milli, quota);
		slash = strrchr(folder, '/');
		if (slash == NULL)
			return cpus_milli;
		*slash = '\0';
	}
}

static uint32
cpus_milli(void)
{
	cpu_set_t	allowed;
	long		online = sysconf(_SC_NPROCESSORS_ONLN);

	if (gate_server_cpus > 0)
		return (uint32) Max(1, gate_server_cpus * 1000 + 0.5);
	if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
		online = Min(online, CPU_COUNT(&allowed));
	return within_quota((uint32) Max(1, online) * 1000);
}

/* ── The mapping ──────────────────────────────────────────────────────────── */

static int
sealed_memory(size_t length)
{
	int			fd = memfd_create("pg_headgate", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return -1;
	if (posix_fallocate(fd, 0, (off_t) length) == 0
		&& fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
		return fd;
	close(fd);
	return -1;
}

static void *
map_memory(size_t length)
{
	int			flags = MAP_SHARED | MAP_POPULATE;
	void	   *memory;

	region_fd = sealed_memory(length);
	if (region_fd < 0)
	{
		ereport(LOG, errmsg("pg_headgate: could not create a sealed memory file: %m"),
				errhint("Traffic control works, but its counters can be read only over SQL."));
		flags |= MAP_ANONYMOUS;
	}
	else
		ReserveExternalFD();
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, region_fd, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

/* Those who read the old one from outside keep it whole for as long as they like. */
static void
unmap_memory(void)
{
	if (gate_region == NULL)
		return;
	munmap(gate_region, region_length);
	if (region_fd >= 0)
	{
		close(region_fd);
		ReleaseExternalFD();
	}
	gate_region = NULL;
	region_fd = -1;
}

const char *
gate_region_kind(void)
{
	return gate_region == NULL ? "none" : region_fd < 0 ? "anonymous" : "memfd";
}

/* ── server.json ──────────────────────────────────────────────────────────── */

static bool
write_server_file(const char *path, uint32 cpus)
{
	int			fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	char		text[512];
	int			length;
	bool		whole;

	if (fd < 0)
		return false;
	length = snprintf(text, sizeof text,
					  "{\"pid\": %d, \"region_fd\": %d, \"region_bytes\": %zu, \"format\": 1, "
					  "\"extension\": \"%s\", \"server_version_num\": %d, "
					  "\"max_connections\": %d, \"cpus_milli\": %u}\n",
					  MyProcPid, region_fd, region_length, GATE_VERSION, PG_VERSION_NUM,
					  MaxConnections, cpus);
	whole = write(fd, text, length) == length;
	return close(fd) == 0 && whole;
}

static void
remove_server_file(int code, Datum arg)
{
	char		path[MAXPGPATH];

	/* Inherited by children, whose it is not. */
	if (MyProcPid != PostmasterPid)
		return;
	snprintf(path, sizeof path, "%s/server.json", gate_directory);
	unlink(path);
}

static void
tell_where(uint32 cpus)
{
	char		path[MAXPGPATH];
	char		staged[MAXPGPATH];

	snprintf(path, sizeof path, "%s/server.json", gate_directory);
	snprintf(staged, sizeof staged, "%s/server.json.%d.new", gate_directory, MyProcPid);
	if ((mkdir(gate_directory, 0700) == 0 || errno == EEXIST)
		&& write_server_file(staged, cpus) && rename(staged, path) == 0)
		return;
	ereport(LOG, errmsg("pg_headgate: could not write \"%s\": %m", path),
			errhint("To publish policies, pg_headgate.directory must be a directory that belongs "
					"to the server's user."));
	unlink(staged);
}

/* ── Start ────────────────────────────────────────────────────────────────── */

/* So that no client can make up values that crowd one set of the table of buckets. */
static void
key_region(hg_region *region)
{
	uint64		secret;

	if (pg_strong_random(&secret, sizeof secret))
		hg_region_keyed(region, secret);
	else
		ereport(LOG, errmsg("pg_headgate: no random numbers for the bucket table"));
}

static bool
init_region(void *memory, uint32 cpus)
{
	hg_sizes	sizes = chosen_sizes();
	const char *why = hg_region_init(memory, region_length, &sizes, cpus, MaxConnections,
									 gate_now_ns(), gate_clock_us / 1000);

	if (why != NULL)
		ereport(LOG, errmsg("pg_headgate: could not set up shared memory: %s", why));
	else
		key_region(memory);
	return why == NULL;
}

static void
find_shared(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	gate_shared = ShmemInitStruct("pg_headgate", sizeof(GateShared), &found);
	if (!found)
		memset(gate_shared, 0, sizeof(GateShared));
	LWLockRelease(AddinShmemInitLock);
}

/* In the postmaster, at the start and again after each crash of a backend. */
void
gate_make_region(void)
{
	hg_sizes	sizes = chosen_sizes();
	uint32		cpus = cpus_milli();
	bool		first = gate_region == NULL;
	void	   *memory;

	if (!IsPostmasterEnvironment || IsUnderPostmaster)
		return;
	find_shared();
	gate_set_clock(GetCurrentTimestamp());
	unmap_memory();
	region_length = hg_region_bytes(&sizes);
	memory = map_memory(region_length);
	if (memory == NULL || !init_region(memory, cpus))
	{
		ereport(LOG, errmsg("pg_headgate: could not get %zu bytes of shared memory: traffic "
							"control is off", region_length));
		return;
	}
	gate_region = memory;
	gate_tell_enabled(gate_enabled);
	tell_where(cpus);
	if (first)
		on_proc_exit(remove_server_file, 0);
}

/* By the postmaster, whose reload comes first: all others see it at once. */
void
gate_tell_enabled(bool enabled)
{
	if (gate_region != NULL && MyProcPid == PostmasterPid)
		atomic_store(&gate_region->enabled, enabled ? 1 : 0);
}

/* ── Seats ────────────────────────────────────────────────────────────────── */

hg_seat *
gate_seat_of(uint32 seat)
{
	Assert(seat < gate_region->sizes.seats);
	return (hg_seat *) ((char *) gate_region + gate_region->seats_at) + seat;
}

void
gate_stand(void)
{
	if (gate_seat == NO_SEAT)
		return;
	hg_seat_free(gate_region, gate_seat);
	gate_seat = NO_SEAT;
}

/* Also for FATAL, which passes no PG_CATCH. */
static void
stand_up(int code, Datum arg)
{
	gate_wake();
	gate_abandon_all();
	gate_stand();
}

static void
take_seat(void)
{
	static bool will_stand = false;

	gate_seat = (uint32) (MyProc - ProcGlobal->allProcs);
	hg_seat_take(gate_region, gate_seat, MyProcPid);
	if (!will_stand)
		before_shmem_exit(stand_up, 0);
	will_stand = true;
}

void
gate_sit(void)
{
	if (unlikely(gate_seat == NO_SEAT))
		take_seat();
}
