/*
 * match.c: the budgets of a statement, remembered.
 *
 *   text, or its comments ──seen before?──► │
 *   tags, ids ──found before?──► matches, else hg_match
 *
 * What matches follows from the policy and the session (both in the session's generation), the
 * health, and of the statement from its tags, its query id and its fingerprint. A prepared
 * statement comes with the same text again, one with its values in the text with the same comments
 * behind them: their tags are not even read. If not, then mostly with the same tags: no rule is
 * looked up. Texts and tags are compared in full, with copies: a pointer tells nothing, since memory
 * is used again.
 */
#include "pg_headgate.h"

#include "utils/memutils.h"

#define PLACES 32				/* of each kind; a power of two */
#define PLACE_BITS 5
#define MAX_TEXT 1024
#define MAX_TAGS 8
#define MAX_TAGS_TEXT 256
#define MAX_MATCHES 8
#define MATCHES_BYTES (offsetof(hg_matches, at) + MAX_MATCHES * sizeof(hg_match_one))

/* What matches follows from, but for the text. */
typedef struct Grounds
{
	uint64		generation;		/* of the session; 0: none */
	uint64		query_id;		/* if some rule asks for it, as the next */
	uint64		fingerprint;
	int			healthy;
} Grounds;

typedef struct Found
{
	Grounds		grounds;
	uint64		stamp;			/* of what is here */
	uint32		tags_count;
	uint32		tags_used;
	hg_tag		tags[MAX_TAGS];
	char		tags_text[MAX_TAGS_TEXT];
	/* Cut behind the last that can be kept. */
	union
	{
		hg_matches *matches;
		char	   *memory;
	};
} Found;

typedef struct Seen
{
	Grounds		grounds;
	uint64		stamp;			/* of what was found for it */
	const Found *found;
	int			length;
	char		text[MAX_TEXT];
} Seen;

static Found *found_ones = NULL;
static Seen *seen_ones = NULL;
static uint64 stamps = 0;
static hg_matches latest;
static hg_tags tags;

void
gate_prepare_match(void)
{
	char	   *memory;

	if (likely(seen_ones != NULL))
		return;
	memory = MemoryContextAllocZero(TopMemoryContext, PLACES * MATCHES_BYTES);
	found_ones = MemoryContextAllocZero(TopMemoryContext, PLACES * sizeof(Found));
	for (int i = 0; i < PLACES; i++)
		found_ones[i].memory = memory + i * MATCHES_BYTES;
	seen_ones = MemoryContextAllocZero(TopMemoryContext, PLACES * sizeof(Seen));
}

static uint32
place(uint64 hash)
{
	return (uint32) (hash * UINT64CONST(0x9e3779b97f4a7c15) >> (64 - PLACE_BITS));
}

static bool
same_grounds(const Grounds *a, const Grounds *b)
{
	return a->generation == b->generation && a->query_id == b->query_id
		&& a->fingerprint == b->fingerprint && a->healthy == b->healthy;
}

/* ── By text ──────────────────────────────────────────────────────────────── */

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

static const hg_matches *
look_up_text(const Seen *seen, const Grounds *grounds, const char *text, int length)
{
	if (seen->length != length || !same_grounds(&seen->grounds, grounds)
		|| seen->found->stamp != seen->stamp || memcmp(seen->text, text, length) != 0)
		return NULL;
	return seen->found->matches;
}

static void
keep_text(Seen *seen, const Grounds *grounds, const char *text, int length, const Found *found)
{
	seen->grounds = *grounds;
	seen->stamp = found->stamp;
	seen->found = found;
	seen->length = length;
	memcpy(seen->text, text, length);
}

/* ── By tags ──────────────────────────────────────────────────────────────── */

static bool
fits_tags(void)
{
	return tags.count <= MAX_TAGS && tags.used <= MAX_TAGS_TEXT && tags.ignored == 0
		&& tags.duplicates == 0;
}

static Found *
place_of_tags(const Grounds *grounds)
{
	uint64		hash = grounds->query_id ^ grounds->fingerprint ^ tags.used;

	for (uint32 i = 0; i < tags.used; i += 4)
		hash = hash * 31 + (uint8) tags.text[i];
	return &found_ones[place(hash)];
}

static bool
is_found(const Found *found, const Grounds *grounds)
{
	return same_grounds(&found->grounds, grounds) && found->tags_count == tags.count
		&& found->tags_used == tags.used
		&& memcmp(found->tags, tags.tags, tags.count * sizeof(hg_tag)) == 0
		&& memcmp(found->tags_text, tags.text, tags.used) == 0;
}

static void
keep_found(Found *found, const Grounds *grounds)
{
	found->grounds = *grounds;
	found->stamp = ++stamps;
	found->tags_count = tags.count;
	found->tags_used = tags.used;
	memcpy(found->tags, tags.tags, tags.count * sizeof(hg_tag));
	memcpy(found->tags_text, tags.text, tags.used);
	memcpy(found->matches, &latest,
		   offsetof(hg_matches, at) + latest.count * sizeof(hg_match_one));
}

/* ── Both ─────────────────────────────────────────────────────────────────── */

static Grounds
grounds_of(const hg_policy *policy, const GateSession *session, const hg_statement *statement)
{
	bool		by_health = (policy->flags & HG_POLICY_BY_HEALTH) != 0;

	return (Grounds) {
		.generation = session->generation,
		.query_id = session->core.needs_query ? statement->query_id : 0,
		.fingerprint = statement->fingerprint,
		.healthy = by_health ? hg_healthy(gate_region, gate_clock_us / 1000) : -1,
	};
}

/* The place where it is found now; NULL: it is in `latest` alone. */
static const Found *
find(const hg_policy *policy, const GateSession *session, const hg_statement *statement,
	 const Grounds *grounds)
{
	Found	   *found;

	tags.count = tags.used = tags.ignored = tags.duplicates = 0;
	if (session->core.needs_tags)
		hg_tags_read(statement->text, statement->length, HG_POSTGRES, &tags);
	found = place_of_tags(grounds);
	if (fits_tags() && is_found(found, grounds))
		return found;
	hg_match(policy, &session->core, statement, gate_clock_us / 1000, grounds->healthy, &tags,
			 &latest);
	if (latest.count > MAX_MATCHES || !fits_tags())
		return NULL;
	keep_found(found, grounds);
	return found;
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
	const char *end = core.text + core.length;
	const char *text = session->core.needs_fingerprint ? core.text
		: session->core.needs_tags ? comments_of(core.text, end) : end;
	int			length = end - text;
	Grounds		grounds = grounds_of(policy, session, &core);
	Seen	   *seen = &seen_ones[place(statement->query_id ^ (uint64) length)];
	const hg_matches *matches;
	const Found *found;

	if (length <= MAX_TEXT && (matches = look_up_text(seen, &grounds, text, length)) != NULL)
		return matches;
	if (session->core.needs_fingerprint)
		core.fingerprint = hg_fingerprint(core.text, core.length, HG_POSTGRES);
	core.fingerprinted = session->core.needs_fingerprint;
	grounds.fingerprint = core.fingerprint;
	found = find(policy, session, &core, &grounds);
	if (found == NULL)
		return &latest;
	grounds.fingerprint = 0;	/* it follows from the text */
	if (length <= MAX_TEXT)
		keep_text(seen, &grounds, text, length, found);
	return found->matches;
}
