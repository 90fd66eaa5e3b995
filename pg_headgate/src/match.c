/*
 * match.c: the budgets of a statement, remembered.
 *
 *   text, or its comments ──seen before?──► matches
 *                                      └──► its tags, hg_match, which rule decides about its client
 *
 * What matches follows from the policy and the session (both in the session's generation), the
 * health, the query id and the text. A prepared statement comes with the same text again, one with
 * its values in the text with the same comments behind them: in neither case its tags are read.
 * Texts are compared in full, with copies: a pointer tells nothing, since memory is used again.
 */
#include "pg_headgate.h"

#include "utils/memutils.h"

#define PLACES 64				/* a power of two */
#define PLACE_BITS 6
#define MAX_TEXT 1024
#define MAX_MATCHES 8
#define MATCHES_BYTES (offsetof(hg_matches, at) + MAX_MATCHES * sizeof(hg_match_one))
#define SIGNATURES 8

/* What matches follows from, but for the text. */
typedef struct Grounds
{
	uint64		generation;		/* of the session; 0: none */
	uint64		query_id;		/* if some rule asks for it */
	int			healthy;
} Grounds;

typedef struct Seen
{
	Grounds		grounds;
	int			length;			/* of the whole text; -1: all that is kept is its end */
	int			kept;			/* bytes of `text`, the last `comments` of which are all that counts */
	int			comments;
	/* Cut behind the last that can be kept. */
	union
	{
		hg_matches *matches;
		char	   *memory;
	};
	char		text[MAX_TEXT];
} Seen;

static Seen *seen_ones = NULL;
static hg_matches latest;
static hg_tags tags;
static hg_signature_cache signatures = {.entries = SIGNATURES};

void
gate_prepare_match(void)
{
	char	   *memory;

	if (likely(seen_ones != NULL))
		return;
	memory = MemoryContextAllocZero(TopMemoryContext, PLACES * MATCHES_BYTES);
	signatures.entry = MemoryContextAllocZero(TopMemoryContext,
											  SIGNATURES * sizeof *signatures.entry);
	seen_ones = MemoryContextAllocZero(TopMemoryContext, PLACES * sizeof(Seen));
	for (int i = 0; i < PLACES; i++)
		seen_ones[i].memory = memory + i * MATCHES_BYTES;
}

static Seen *
place(uint64 number)
{
	return &seen_ones[number * UINT64CONST(0x9e3779b97f4a7c15) >> (64 - PLACE_BITS)];
}

static bool
same_grounds(const Grounds *a, const Grounds *b)
{
	return a->generation == b->generation && a->query_id == b->query_id
		&& a->healthy == b->healthy;
}

/* Behind the quoted thing at `at`; NULL: that takes a closer look (escapes, dollar quotes). */
static const char *
after_plain_quote(const char *at)
{
	const char *stops = *at == '"' ? "\"" : "'\\";
	const char *end;

	if (*at == '$')
		return at[1] >= '0' && at[1] <= '9' ? at + 1 : NULL;
	end = at + 1 + strcspn(at + 1, stops);
	return *end == *at ? end + 1 : NULL;
}

/* Where comments begin, at the latest at `end`; what lies before has no tags, whatever its values
 * are. The text's start, where a quick look cannot tell. */
static const char *
comments_of(const char *text, const char *end)
{
	const char *at = text;

	for (;;)
	{
		/* A slice of many ends at a semicolon: what follows is not to be read for each of them. */
		at += strcspn(at, "'\"$-/\\;");
		if (at >= end)
			return end;
		if (*at == ';')
			at++;
		else if (*at == '-' || *at == '/')
		{
			if (at[1] == (*at == '-' ? '-' : '*'))
				return at;
			at++;
		}
		else if (*at == '\\' || (at = after_plain_quote(at)) == NULL)
			return text;
	}
}

static Grounds
grounds_of(const hg_policy *policy, const GateSession *session, const hg_statement *statement)
{
	bool		by_health = (policy->flags & HG_POLICY_BY_HEALTH) != 0;

	return (Grounds) {
		.generation = session->generation,
		.query_id = session->core.needs_query ? statement->query_id : 0,
		.healthy = by_health ? hg_healthy(gate_region, gate_clock_us / 1000) : -1,
	};
}

/* Who it is, by tags that count alone, and which rule decides about that client. */
static void
name_client(const hg_policy *policy, const hg_identity *identity, uint64 fingerprint)
{
	char		name[HG_MAX_IDENTITY_BYTES + 1];
	bool		by_tag;
	size_t		length = hg_identify(identity, gate_client(), &tags, fingerprint, name, &by_tag);

	latest.client = hg_tally_of(gate_region, name, length);
	latest.gate = hg_gate_of(policy, name, length, by_tag, gate_clock_us / 1000);
}

/* Into `latest`; false: it may not be remembered, since what a signature vouches for ends with it. */
static bool
find(const hg_policy *policy, const GateSession *session, const hg_statement *statement,
	 int healthy)
{
	const hg_identity *identity = hg_identity_of(policy);
	int64		until_ms = PG_INT64_MAX;

	tags.count = tags.used = tags.ignored = tags.duplicates = 0;
	if (session->core.needs_tags || session->by_tags)
		hg_tags_read(statement->text, statement->length, HG_POSTGRES, &tags);
	if (identity != NULL && identity->trusts > 0)
		hg_trust_tags(&signatures, identity, (uint32) session->generation,
					  session->client.username, gate_clock_us / 1000, &tags, &until_ms);
	hg_match_tags(policy, &session->core, statement, gate_clock_us / 1000, healthy, &tags,
				  &latest);
	if (identity != NULL)
		name_client(policy, identity, statement->fingerprint);
	return until_ms == PG_INT64_MAX && latest.count <= MAX_MATCHES;
}

/* Keeps the whole text if it fits, else its end from `comments` on. */
static void
keep(Seen *seen, const Grounds *grounds, const hg_statement *statement, const char *comments)
{
	const char *end = statement->text + statement->length;
	const char *from = statement->length <= MAX_TEXT ? statement->text : comments;

	seen->grounds = *grounds;
	seen->length = from == statement->text ? (int) statement->length : -1;
	seen->kept = end - from;
	seen->comments = end - comments;
	memcpy(seen->text, from, seen->kept);
	memcpy(seen->matches, &latest,
		   offsetof(hg_matches, at) + latest.count * sizeof(hg_match_one));
}

const hg_matches *
gate_match(const hg_policy *policy, const GateSession *session, const GateStatement *statement)
{
	hg_statement core = {
		.text = statement->slice.text + statement->slice.start,
		.length = statement->slice.length,
		.dialect = HG_POSTGRES,
		.query_id = statement->query_id,
	};
	int			length = statement->slice.length;
	const char *end = core.text + length;
	const char *comments = end;
	Grounds		grounds = grounds_of(policy, session, &core);
	Seen	   *seen = place(core.query_id != 0 ? core.query_id : (uint64) length);
	bool		known = same_grounds(&seen->grounds, &grounds);

	core.fingerprinted = session->core.needs_fingerprint || session->by_pattern;
	if (core.fingerprinted || session->core.needs_tags || session->by_tags)
	{
		if (known && seen->length == length && memcmp(seen->text, core.text, length) == 0)
			return seen->matches;
		comments = core.fingerprinted ? core.text : comments_of(core.text, end);
	}
	if (known && seen->comments == end - comments
		&& memcmp(seen->text + seen->kept - seen->comments, comments, seen->comments) == 0)
		return seen->matches;
	if (core.fingerprinted)
		core.fingerprint = hg_fingerprint(core.text, core.length, HG_POSTGRES);
	if (!find(policy, session, &core, grounds.healthy) || end - comments > MAX_TEXT)
		return &latest;
	keep(seen, &grounds, &core, comments);
	return seen->matches;
}
