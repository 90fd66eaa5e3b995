/*
 * my_text.c: the few statements that the machine itself must know. MySQL tells a database's change
 * only to clients that track sessions, and leaves it to the proxy to see who is to be killed and which
 * transaction ends.
 */
#include "my_inside.h"

#include "kinds.h"

/* Is on no word: the statement is over. */
static bool is_over(const hg_tokens *tokens)
{
    return tokens->start == tokens->end || hg_token_is_mark(tokens, ';');
}

/* KILL [HARD | SOFT] [CONNECTION | QUERY] number. By a query's id, or a user's, nobody is found here. */
static void read_kill(hg_tokens *tokens, my_meaning *meaning)
{
    uint64_t number = 0;

    hg_tokens_next(tokens);
    if (hg_token_is(tokens, "hard") || hg_token_is(tokens, "soft"))
        hg_tokens_next(tokens);
    if (hg_token_is(tokens, "connection") || hg_token_is(tokens, "query"))
        hg_tokens_next(tokens);
    if (is_over(tokens))
        return;
    for (const uint8_t *at = tokens->start; at < tokens->end; at++) {
        if (*at < '0' || *at > '9' || number > UINT32_MAX)
            return;
        number = number * 10 + (uint64_t) (*at - '0');
    }
    hg_tokens_next(tokens);
    if (number > UINT32_MAX || !is_over(tokens))
        return;
    meaning->flags |= MY_UNIT_OPEN;
    meaning->thread = (uint32_t) number;
}

static void read_use(hg_tokens *tokens, my_meaning *meaning)
{
    const uint8_t *start, *end;

    hg_tokens_next(tokens);
    start = tokens->start;
    end = tokens->end;
    if (is_over(tokens))
        return;
    if (*start == '`' && end - start > 2) {
        start++;
        end--;
    }
    if (end - start > 256)
        return;
    meaning->use = (const char *) start;
    meaning->use_length = (size_t) (end - start);
}

/* Of a ROLLBACK: not to a savepoint. */
static bool ends_all(hg_tokens *tokens)
{
    hg_tokens_next(tokens);
    if (hg_token_is(tokens, "work"))
        hg_tokens_next(tokens);
    return !hg_token_is(tokens, "to");
}

static bool is_show_warnings(hg_tokens *tokens)
{
    hg_tokens_next(tokens);
    if (!hg_token_is(tokens, "warnings"))
        return false;
    hg_tokens_next(tokens);
    return is_over(tokens);
}

/* One statement, on whose first word it is. */
static void read_one(hg_tokens *tokens, my_meaning *meaning)
{
    switch (tokens->start == tokens->end ? 0 : *tokens->start | 32) {
    case 'u':
        if (hg_token_is(tokens, "use"))
            read_use(tokens, meaning);
        return;
    case 'k':
        if (hg_token_is(tokens, "kill"))
            read_kill(tokens, meaning);
        return;
    case 'b':
    case 'c':
        if (hg_token_is(tokens, "begin") || hg_token_is(tokens, "commit"))
            meaning->flags |= MY_UNIT_ENDS;
        return;
    case 'r':
        if (hg_token_is(tokens, "rollback") && ends_all(tokens))
            meaning->flags |= MY_UNIT_ENDS;
        return;
    case 's':
        if (hg_token_is(tokens, "start"))
            meaning->flags |= MY_UNIT_ENDS;
        else if (hg_token_is(tokens, "show") && is_show_warnings(tokens))
            meaning->flags |= MY_UNIT_LISTS;
        return;
    default:
        return;
    }
}

void my_read_meaning(const char *text, size_t length, bool many, my_meaning *meaning)
{
    hg_tokens tokens;

    *meaning = (my_meaning){0};
    hg_tokens_begin(&tokens, text, length, HG_MYSQL);
    hg_tokens_next(&tokens);
    if (!many) {
        read_one(&tokens, meaning);
        return;
    }
    /* Of several only the database matters: whose transaction is open after them, the server says. */
    while (tokens.start != tokens.end) {
        if (hg_token_is(&tokens, "use"))
            read_use(&tokens, meaning);
        while (!is_over(&tokens))
            hg_tokens_next(&tokens);
        hg_tokens_next(&tokens);
    }
}

/* ── Attributes of a query ────────────────────────────────────────────────── */

/* As MySQL's server reads them: few types have a width of their own, all others are strings behind their
 * length. Types are 15 bits; the highest says that a number has no sign. */
enum { TYPE_BITS = 0x7fff, STRING = 255, NO_TYPE = 0 };

static const uint8_t width_of[256] = {
    [1] = 1,        [2] = 2,        [3] = 4,
    [4] = 4,        [5] = 8,        [8] = 8, /* TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG */
    [0] = STRING,   [246] = STRING,                                 /* DECIMAL, NEWDECIMAL */
    [7] = STRING,   [10] = STRING,  [11] = STRING,
    [12] = STRING,    /* TIMESTAMP, DATE, TIME, DATETIME */
    [15] = STRING,  [253] = STRING, [254] = STRING, /* VARCHAR, VAR_STRING, STRING */
    [249] = STRING, [250] = STRING, [251] = STRING,
    [252] = STRING, /* TINY_BLOB to BLOB */
    [16] = STRING,  [245] = STRING, [247] = STRING,
    [248] = STRING, [255] = STRING /* BIT, JSON, ENUM, SET, GEOMETRY */
};

/* False: a type that no client sends, so that nobody knows how long its value is. */
static bool skip_value(my_reader *reader, uint64_t type)
{
    uint8_t width = type < sizeof width_of ? width_of[type] : NO_TYPE;
    size_t length;

    if (width == STRING)
        my_string(reader, &length);
    else
        my_take(reader, width);
    return width != NO_TYPE;
}

/* False: malformed. What is missing at the end makes `reader` bad. */
static bool skip_attributes(my_reader *reader)
{
    uint64_t count = my_number(reader), sets = my_number(reader);
    const uint8_t *nulls;
    my_reader types;
    size_t ignored;

    if (reader->bad)
        return true;
    if (sets != 1 || count > 0xffff)
        return false;
    if (count == 0)
        return true;
    nulls = (const uint8_t *) my_take(reader, (size_t) (count + 7) / 8);
    if (my_fixed(reader, 1)
        != 1) /* whether there are types: there is no other statement to have them from */
        return reader->bad;
    types = *reader;
    for (uint64_t i = 0; i < count && !reader->bad; i++) {
        my_fixed(reader, 2);
        my_string(reader, &ignored);
    }
    for (uint64_t i = 0; i < count && !reader->bad; i++) {
        uint64_t type = my_fixed(&types, 2) & TYPE_BITS;

        my_string(&types, &ignored);
        if ((nulls[i / 8] >> i % 8 & 1) == 0 && !skip_value(reader, type))
            return false;
    }
    return true;
}

const char *my_query_text(const uint8_t *payload, size_t length, bool attributes,
                          size_t *text_length, bool *beyond)
{
    my_reader reader = my_read(payload, length);

    my_fixed(&reader, 1);
    *beyond = false;
    if (attributes && !skip_attributes(&reader))
        return NULL;
    *beyond = reader.bad;
    if (reader.bad)
        return NULL;
    *text_length = (size_t) (reader.end - reader.at);
    return (const char *) reader.at;
}
