"""The metrics that Headgate measures itself: one row each, with published defaults.

Reading them is the job of probes/; this table is what settings, lint and the reference
pages derive from. A default threshold is a starting point: compare it with your own baseline.
`headgate metrics calibrate` proposes one for commit_delay.
"""

from __future__ import annotations

from dataclasses import dataclass

from headgate.base.names import Scope
from headgate.metrics.model import Comparison, Engine, RollupOf

BOTH = frozenset({Engine.POSTGRES, Engine.MYSQL})
POSTGRES = frozenset({Engine.POSTGRES})
MYSQL = frozenset({Engine.MYSQL})


@dataclass(frozen=True, slots=True)
class BuiltinMetric:
    name: str
    about: str
    unit: str
    threshold: float
    why: str
    """Why this default threshold."""
    engines: frozenset[Engine] = BOTH
    comparison: Comparison = Comparison.ABOVE
    interval_s: float = 1.0
    timeout_s: float = 0.5
    options: tuple[tuple[str, str], ...] = ()
    """(name, meaning) of the options it takes."""
    needs_database: bool = True
    scope: Scope = Scope.HOST
    rollup_of: RollupOf = RollupOf.ALL


_TABLE = (
    BuiltinMetric(
        "lag",
        "Seconds a replica is behind its primary. On a replica its own lag; on a Postgres primary "
        "the worst of the replicas that stream from it, from write-ahead-log positions.",
        "s",
        5.0,
        "what large fleets run with; readers rarely notice less",
        interval_s=0.25,
        scope=Scope.SHARD,
        rollup_of=RollupOf.REPLICAS,
        options=(
            (
                "method",
                "`auto` (default: the heartbeat; positions on a primary, or where nobody writes "
                "one), `native` (positions, trusting a silent connection) or `heartbeat` (nothing "
                "else)",
            ),
            (
                "heartbeat_table",
                "table to read, default `headgate.heartbeat`; pt-heartbeat's works",
            ),
            (
                "remember_s",
                "Postgres primary: how long a replica that has disconnected still counts, "
                "default 600",
            ),
        ),
    ),
    BuiltinMetric(
        "threads_running",
        "Statements being executed: Threads_running, or active client backends in Postgres "
        "(the probe's own session is not counted).",
        "",
        100.0,
        "more than this is queueing for cores on any machine of common size",
    ),
    BuiltinMetric(
        "commit_delay",
        "Seconds that a real, tiny, durable commit takes on the primary, as its clients see it.",
        "s",
        0.05,
        "a few milliseconds or less is healthy on NVMe or EBS; 50 ms is a stalled queue",
        interval_s=0.02,
        options=(("table", "MySQL/MariaDB: table to write, default `headgate.commit_probe`"),),
    ),
    BuiltinMetric(
        "pool_usage",
        "Client connections as a share of those the server's own settings allow ordinary users.",
        "ratio",
        1.0,
        "derived: 1.0 is the server's own maximum",
        comparison=Comparison.AT_LEAST,
    ),
    BuiltinMetric(
        "loadavg",
        "One-minute load average per core of the agent's host (cores allowed by its cgroup).",
        "per core",
        1.0,
        "above one runnable task per core, work waits",
        needs_database=False,
    ),
    BuiltinMetric(
        "psi_cpu",
        "Share of the last 10 s in which some task waited for a CPU (/proc/pressure/cpu, some).",
        "ratio",
        0.6,
        "brief waits are normal on a busy host; most of the time is not",
        needs_database=False,
    ),
    BuiltinMetric(
        "psi_io",
        "Share of the last 10 s in which some task waited for I/O (/proc/pressure/io, some).",
        "ratio",
        0.4,
        "databases always wait for some I/O; 40 % is saturation on most disks",
        needs_database=False,
    ),
    BuiltinMetric(
        "psi_memory",
        "Share of the last 10 s in which some task waited for memory (/proc/pressure/memory).",
        "ratio",
        0.1,
        "reclaim on a database host means the page cache is being evicted",
        needs_database=False,
    ),
    BuiltinMetric(
        "run_queue",
        "Tasks of the agent's host that run or wait for a core, per core that its cgroup allows: "
        "the mean of the last five looks (/proc/stat).",
        "per core",
        2.0,
        "as many wait as run",
        needs_database=False,
    ),
    BuiltinMetric(
        "disk_busy",
        "Share of the time since the last probe in which the busiest disk of the agent's host had "
        "something to do (/proc/diskstats).",
        "ratio",
        0.95,
        "a disk without pauses has a queue; one that serves many requests at once may have none",
        options=(("device", "only this one, such as `nvme0n1`"),),
        needs_database=False,
    ),
    BuiltinMetric(
        "page_refaults",
        "Pages a second that the page cache had evicted and had to read again, in the agent's "
        "cgroup (memory.stat) or on its host (/proc/vmstat).",
        "pages/s",
        2000.0,
        "8 MB/s of reads that memory used to answer: the working set does not fit any more",
        needs_database=False,
    ),
    BuiltinMetric(
        "lock_waits",
        "Sessions waiting for a lock that another session holds.",
        "",
        10.0,
        "a few are normal; ten at once is a convoy",
        timeout_s=1.0,
    ),
    BuiltinMetric(
        "longest_lock_wait",
        "Seconds that the longest current lock wait has lasted.",
        "s",
        5.0,
        "about as long as a user waits before giving up",
        timeout_s=1.0,
    ),
    BuiltinMetric(
        "oldest_transaction",
        "Age in seconds of the oldest open transaction.",
        "s",
        600.0,
        "vacuum and purge cannot remove row versions newer than it",
        interval_s=5.0,
    ),
    BuiltinMetric(
        "history_list_length",
        "InnoDB undo records not yet purged.",
        "",
        1_000_000.0,
        "purge is far behind; reads through undo slow down",
        engines=MYSQL,
        interval_s=5.0,
    ),
    BuiltinMetric(
        "disk_used",
        "Used share of the file system that holds the data directory (agent on the same host).",
        "ratio",
        0.9,
        "leaves room for a rewrite, and time to act",
        comparison=Comparison.AT_LEAST,
        interval_s=5.0,
        options=(("path", "directory to look at; default: the server's data directory"),),
    ),
    BuiltinMetric(
        "archive_backlog",
        "Write-ahead-log files that wait to be archived.",
        "files",
        64.0,
        "1 GB at the default segment size",
        engines=POSTGRES,
        interval_s=5.0,
        timeout_s=1.0,
    ),
    BuiltinMetric(
        "autovacuum",
        "Autovacuum workers at work on the named tables (any table, if none is named).",
        "",
        1.0,
        "one: bulk work on a table during its vacuum slows both down",
        engines=POSTGRES,
        comparison=Comparison.AT_LEAST,
        options=(("tables", "list of `schema.table`; empty means every table"),),
    ),
    BuiltinMetric(
        "flow_control",
        "Galera: share of time since the last probe in which replication was paused by flow "
        "control.",
        "ratio",
        0.1,
        "the slowest node sets the pace; at 10 % everyone feels it",
        engines=MYSQL,
    ),
)

BUILTINS: dict[str, BuiltinMetric] = {row.name: row for row in _TABLE}
