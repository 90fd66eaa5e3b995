\echo Use "CREATE EXTENSION pg_headgate" to load this file. \quit

-- What lies in the schema already would be granted to pg_monitor below, and whoever owns the schema
-- could replace what is made here.
DO $$
DECLARE
    owner name := (SELECT r.rolname FROM pg_catalog.pg_namespace AS n
                   JOIN pg_catalog.pg_roles AS r ON r.oid OPERATOR(pg_catalog.=) n.nspowner
                   WHERE n.nspname OPERATOR(pg_catalog.=) 'headgate' AND NOT r.rolsuper);
BEGIN
    IF owner IS NOT NULL THEN
        RAISE EXCEPTION 'schema "headgate" belongs to role "%", which is no superuser', owner
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'Drop the schema, or give it to a superuser (ALTER SCHEMA headgate OWNER TO postgres).';
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_class
               WHERE relnamespace OPERATOR(pg_catalog.=) 'headgate'::pg_catalog.regnamespace)
       OR EXISTS (SELECT FROM pg_catalog.pg_proc
                  WHERE pronamespace OPERATOR(pg_catalog.=) 'headgate'::pg_catalog.regnamespace) THEN
        RAISE EXCEPTION 'schema "headgate" holds objects of somebody else'
            USING ERRCODE = 'duplicate_object', HINT = 'Drop them, or move them to another schema.';
    END IF;
END $$;

-- Views of what the server decides by, and of what it has decided. Nothing here is needed for
-- decisions: those are made wherever the library is preloaded.

CREATE FUNCTION headgate.status(
    OUT enabled boolean, OUT policy_version bigint, OUT policy_checksum text,
    OUT published_at timestamptz, OUT source text, OUT rejected_policies bigint,
    OUT last_rejection text, OUT health text, OUT health_until timestamptz, OUT region text,
    OUT region_bytes bigint, OUT server_cpus double precision, OUT server_workers integer,
    OUT pattern_evictions bigint, OUT counts_full bigint, OUT extension_version text)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'headgate_status' LANGUAGE C STRICT VOLATILE;
COMMENT ON FUNCTION headgate.status() IS 'the policy in force and where it came from';

CREATE FUNCTION headgate.backends(
    OUT pid integer, OUT policy_version bigint, OUT policy_checksum text, OUT statements bigint,
    OUT matched bigint, OUT bypassed bigint, OUT ignored_tags bigint, OUT duplicate_tags bigint,
    OUT left_out bigint)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'headgate_backends' LANGUAGE C STRICT VOLATILE;
CREATE VIEW headgate.backends AS SELECT * FROM headgate.backends();
COMMENT ON VIEW headgate.backends IS 'the policy that each backend last decided by';

CREATE FUNCTION headgate.budgets(
    OUT budget text, OUT mode text, OUT rate double precision, OUT capacity double precision,
    OUT burst double precision, OUT concurrency double precision, OUT max_workers integer,
    OUT expires_at timestamptz, OUT buckets bigint, OUT running bigint,
    OUT debt_s double precision, OUT fill_percent double precision, OUT admitted bigint,
    OUT estimated_s double precision, OUT charged_s double precision,
    OUT wall_s double precision, OUT warned_threshold bigint,
    OUT warned_concurrency bigint, OUT warned_burst bigint, OUT warned_capacity bigint,
    OUT blocked_early bigint, OUT blocked_concurrency bigint, OUT blocked_burst bigint,
    OUT blocked_capacity bigint, OUT delayed bigint, OUT delayed_s double precision,
    OUT passed bigint, OUT forgiven_s double precision, OUT uncounted bigint, OUT sleeping bigint,
    OUT last_violation_at timestamptz)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'headgate_budgets' LANGUAGE C STRICT VOLATILE;
CREATE VIEW headgate.budgets AS SELECT * FROM headgate.budgets();
COMMENT ON VIEW headgate.budgets IS 'limits, use and counts of each budget; percents of the server';

CREATE FUNCTION headgate.buckets(
    OUT budget text, OUT label text, OUT debt_s double precision,
    OUT fill_percent double precision, OUT running bigint, OUT statements bigint,
    OUT admitted bigint)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'headgate_buckets' LANGUAGE C STRICT VOLATILE;
CREATE VIEW headgate.buckets AS SELECT * FROM headgate.buckets();
COMMENT ON VIEW headgate.buckets IS 'each bucket: of a budget, or of one value that it is for each';

CREATE FUNCTION headgate.patterns(
    OUT query_id bigint, OUT database oid, OUT calls bigint, OUT k_ns double precision,
    OUT mean_cpu_ms double precision, OUT p90_cpu_ms double precision,
    OUT mean_cost double precision, OUT error double precision, OUT cpu_s double precision,
    OUT wall_s double precision)
RETURNS SETOF record AS 'MODULE_PATHNAME', 'headgate_patterns' LANGUAGE C STRICT VOLATILE;
CREATE VIEW headgate.patterns AS
SELECT query_id, datname AS database, calls, k_ns, mean_cpu_ms, p90_cpu_ms, mean_cost, error, cpu_s,
    wall_s
FROM headgate.patterns() AS p LEFT JOIN pg_catalog.pg_database AS d ON d.oid = p.database;
COMMENT ON VIEW headgate.patterns IS 'what is known of the cost of each pattern of statements';

CREATE VIEW headgate.violations AS
SELECT budget, l.limit_name, l.warned, l.blocked
FROM headgate.budgets() AS b, LATERAL (VALUES
    ('concurrency', b.warned_concurrency, b.blocked_concurrency),
    ('burst', b.warned_burst, b.blocked_burst),
    ('capacity', b.warned_capacity, b.blocked_capacity)) AS l(limit_name, warned, blocked);
COMMENT ON VIEW headgate.violations IS 'how often each limit of each budget was broken';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA headgate FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA headgate FROM PUBLIC;
GRANT USAGE ON SCHEMA headgate TO pg_monitor;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA headgate TO pg_monitor;
GRANT SELECT ON ALL TABLES IN SCHEMA headgate TO pg_monitor;
