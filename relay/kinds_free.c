/*
 * kinds_free.c: the statements that are free, one table for each dialect.
 *
 * Free is what cannot run work: it calls no function, reads no table and writes none. What a row allows
 * is all that it allows: a statement that begins like one and goes on otherwise is decided. Rows are
 * sorted by their first words. tests/proxy/live/test_free_statements.py runs every row at a server.
 *
 *   word, mark     itself                    a|b     either of these
 *   [ … ]          or nothing                { … }   any number of times, also none
 *   < … / … >      one of these              ...     whatever follows: the server takes nothing else
 *   NAME           a name, quoted or not     TEXT    a string        NUM   digits     LIT   any literal
 *   LIKE           a string with two % at most: each one more multiplies the server's work
 *   NIL            an empty string: what REPLACE puts in may make a text grow with each call
 *   VAR            a name that is no word of SET
 *   ANY            a name, a literal, or one of = , . - + * : @
 *   ~(             a bracket right behind what is before it: then the function is the server's own. Not
 *                  in a long statement: REPLACE compares each byte with all of what it looks for
 *   others         what is under that name in `parts`
 */
#include "kinds.h"

#define MOST_STEPS 1024      /* of a match: a statement that takes more is not free */
#define MOST_CALL_BYTES 4096 /* of a statement with a call */

/* ── The tables ───────────────────────────────────────────────────────────── */

/* Deferred triggers that run at the end of a transaction, or at SET CONSTRAINTS, are the doing of what was
 * admitted before. */
static const char *const postgres[] = {
    "abort ...",
    "begin [ work|transaction ] { MODE }",
    "close IDENT",
    "commit ...",
    "deallocate [ prepare ] IDENT",
    "discard all|plans|sequences|temp|temporary",
    "end ...",
    "listen IDENT",
    "prepare transaction TEXT",
    "prepare NAME ...", /* what is prepared is decided when it is executed */
    "release [ savepoint ] IDENT",
    "reset ANY { ANY }",
    "rollback ...",
    "savepoint IDENT",
    "set [ session|local ] VAR { . NAME } =|to ANY { ANY }",
    "set [ session|local ] time zone ANY { ANY }",
    "set [ session|local ] names|schema|catalog|role|seed ANY { ANY }",
    "set [ session|local ] xml option document|content",
    "set [ session|local ] session authorization NAME|TEXT",
    "set constraints ANY { ANY }",
    "set session characteristics as transaction MODE { MODE }",
    "set [ session|local ] transaction MODE { MODE }",
    "set transaction snapshot TEXT",
    "show ANY { ANY }",
    "start transaction { MODE }",
    "unlisten < IDENT / * >",
};

/* Not of a relation: of a view, what is constant in it is worked out to describe it, functions too. */
static const char *const mysql[] = {
    "begin [ work ]",
    "commit ...",
    "deallocate prepare NAME",
    "drop prepare NAME",
    "kill [ hard|soft ] [ connection|query ] NUM",
    "kill [ hard|soft ] query id NUM",
    "kill [ hard|soft ] [ connection|query ] user NAME|TEXT [ @ NAME|TEXT ]",
    "prepare NAME from TEXT", /* what is prepared is decided when it is executed */
    "prepare NAME from @ NAME|TEXT",
    "release savepoint NAME",
    "rollback ...",
    "savepoint NAME",
    "set ASSIGNMENT { , ASSIGNMENT }",
    "set names default",
    "set names NAME|TEXT [ collate NAME|TEXT ]",
    "set charset NAME|TEXT",
    "set character set NAME|TEXT",
    "set role NAME|TEXT",
    "set [ session|local ] transaction MODE { MODE }",
    "show all slaves|replicas status",
    "show binary logs|status",
    "show character set [ like LIKE ]",
    "show charset [ like LIKE ]",
    "show collation [ like LIKE ]",
    "show count ~( * ) warnings|errors",
    "show databases [ like LIKE ]",
    "show engine NAME status|mutex",
    "show errors [ limit NUM [ , NUM ] ]",
    "show explain for NUM",
    "show [ extended ] [ full ] tables [ from|in NAME ] [ like LIKE ]",
    "show full processlist",
    "show [ global|session|local ] status|variables [ WHICH ]",
    "show grants [ for NAME|TEXT [ @ NAME|TEXT ] ]",
    "show master logs|status",
    "show open tables [ from|in NAME ] [ like LIKE ]",
    "show plugins",
    "show privileges",
    "show processlist",
    "show profiles",
    "show replica|slave hosts|status",
    "show replicas",
    "show schemas [ like LIKE ]",
    "show [ storage ] engines",
    "show warnings [ limit NUM [ , NUM ] ]",
    "start transaction { MODE }",
    "unlock table|tables",
    "use NAME",
    "xa end XID [ suspend [ for migrate ] ]",
    "xa begin|start XID [ join|resume ]",
    "xa commit XID [ one phase ]",
    "xa prepare|rollback XID",
    "xa recover [ convert xid ]",
};

typedef struct part {
    char name[12];
    const char *form;
} part;

/* Of both tables. A session variable is set to what is there already, or to what is in the text;
 * drivers add a word to sql_mode, or take one out. */
static const part parts[] = {
    {"ARG", "< LIT / SYSTEM / CALL >"},
    {"ASSIGNMENT",
     "< [ session|local ] VAR / @ NAME|TEXT / @ @ [ session|local . ] VAR > < = / : = > VALUE"},
    {"CALL",
     "< concat|lower|upper|ifnull|coalesce ~( ARG { , ARG } ) / replace ~( ARG , ARG , NIL ) >"},
    {"IDENT", "NAME [ uescape TEXT ]"},
    {"MATCH", "< = TEXT / like LIKE / in ( TEXT { , TEXT } ) >"},
    {"MODE",
     "isolation|level|serializable|repeatable|read|committed|uncommitted|write|only|not|deferrable|"
     "with|consistent|snapshot|,"},
    {"SYSTEM", "@ @ [ global|session|local . ] NAME"},
    {"VALUE", "< [ -|+ ] LIT / NAME / @ NAME|TEXT / SYSTEM / CALL >"},
    {"WHICH", "< like LIKE / where variable_name MATCH { or variable_name MATCH } >"},
    {"XID", "LIT [ , LIT [ , NUM ] ]"},
};

uint32_t hr_free_forms(int dialect, const char *const **forms)
{
    *forms = dialect == HG_MYSQL ? mysql : postgres;
    return dialect == HG_MYSQL ? sizeof mysql / sizeof *mysql : sizeof postgres / sizeof *postgres;
}

const char *hr_free_part(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strlen(parts[i].name) == length && memcmp(parts[i].name, name, length) == 0)
            return parts[i].form;
    return NULL;
}

/* ── One word of a form, one token ────────────────────────────────────────── */

static bool is_any_of(const hg_tokens *tokens, const char *const *words)
{
    for (; *words != NULL; words++)
        if (hg_token_is(tokens, *words))
            return true;
    return false;
}

/* In some of MySQL's character sets a byte above ASCII is a space: then what seems to be one name is several
 * words, and says something else. */
static bool is_plain(const hg_tokens *tokens)
{
    for (const uint8_t *at = tokens->start; at < tokens->end; at++)
        if (*at >= 0x80)
            return false;
    return true;
}

static bool is_name(const hg_tokens *tokens)
{
    return tokens->piece == HG_PIECE_QUOTED
           || (tokens->piece == HG_PIECE_WORD
               && (tokens->text.dialect != HG_MYSQL || is_plain(tokens)));
}

static bool is_digits(const hg_tokens *tokens)
{
    for (const uint8_t *at = tokens->start; at < tokens->end; at++)
        if (*at < '0' || *at > '9')
            return false;
    return tokens->piece == HG_PIECE_LITERAL;
}

static bool is_text(const hg_tokens *tokens)
{
    uint8_t last = tokens->end > tokens->start ? tokens->end[-1] : 0;

    return tokens->piece == HG_PIECE_LITERAL && (last == '\'' || last == '"');
}

static bool is_empty_text(const hg_tokens *tokens)
{
    return is_text(tokens) && tokens->end - tokens->start == 2;
}

static bool is_pattern(const hg_tokens *tokens)
{
    int wild = 0;

    for (const uint8_t *at = tokens->start; at < tokens->end; at++)
        wild += *at == '%';
    return is_text(tokens) && wild <= 2;
}

static bool is_variable(const hg_tokens *tokens)
{
    static const char *const others[] = {"password",     "constraints", "transaction",
                                         "statement",    "global",      "persist",
                                         "persist_only", "default",     NULL};

    return is_name(tokens) && !is_any_of(tokens, others);
}

static bool is_any(const hg_tokens *tokens)
{
    return is_name(tokens) || tokens->piece == HG_PIECE_LITERAL
           || (tokens->piece == HG_PIECE_OTHER && tokens->end - tokens->start == 1
               && memchr("=,.-+*:@", *tokens->start, 8) != NULL);
}

typedef struct class_of {
    char name[5];
    bool (*is)(const hg_tokens *tokens);
} class_of;

static bool is_literal(const hg_tokens *tokens)
{
    return tokens->piece == HG_PIECE_LITERAL;
}

static const class_of classes[] = {
    {"NAME", is_name},   {"TEXT", is_text},    {"NUM", is_digits}, {"LIKE", is_pattern},
    {"LIT", is_literal}, {"VAR", is_variable}, {"ANY", is_any},    {"NIL", is_empty_text}};

/* One of the alternatives between two bars. */
static bool is_one(const hg_tokens *tokens, const char *word, size_t length)
{
    char text[24];

    if (length == 1 && (*word < 'a' || *word > 'z'))
        return hg_token_is_mark(tokens, *word);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strlen(classes[i].name) == length && memcmp(classes[i].name, word, length) == 0)
            return classes[i].is(tokens);
    if (length >= sizeof text)
        return false;
    memcpy(text, word, length);
    text[length] = '\0';
    return hg_token_is(tokens, text);
}

static bool fits(const hg_tokens *tokens, const char *word, size_t length)
{
    const char *end = word + length;

    while (word < end) {
        const char *bar = memchr(word, '|', (size_t) (end - word));
        const char *stop = bar == NULL ? end : bar;

        if (is_one(tokens, word, (size_t) (stop - word)))
            return true;
        word = stop + 1;
    }
    return false;
}

/* ── A form, and what is left of a statement ──────────────────────────────── */

/* Where a form goes on behind the brackets that it is in. */
typedef struct outer {
    const char *form;
    const struct outer *next;
} outer;

/* From behind an opening bracket to the one that closes it, or (`or_slash`) to the next alternative. */
static const char *closing(const char *form, bool or_slash)
{
    int depth = 1;

    for (;; form++) {
        depth += *form == '[' || *form == '{' || *form == '<';
        depth -= *form == ']' || *form == '}' || *form == '>';
        if (depth == 0 || (or_slash && depth == 1 && *form == '/'))
            return form;
    }
}

static bool is_over(const hg_tokens *tokens)
{
    return tokens->start == tokens->end || hg_token_is_mark(tokens, ';');
}

static bool match(const char *form, const outer *behind, const hg_tokens *tokens, int steps);

static bool match_alternatives(const char *form, const outer *behind, const hg_tokens *tokens,
                               int steps)
{
    outer after = {closing(form, false) + 1, behind};

    for (;; form++) {
        if (match(form, &after, tokens, steps))
            return true;
        form = closing(form, true);
        if (*form == '>')
            return false;
    }
}

static bool match_group(const char *form, const outer *behind, const hg_tokens *tokens, int steps)
{
    const char *close = closing(form + 1, false);
    outer after = {*form == '{' ? form : close + 1, behind};

    if (*form == '<')
        return match_alternatives(form + 1, behind, tokens, steps);
    return match(form + 1, &after, tokens, steps) || match(close + 1, behind, tokens, steps);
}

static bool match_word(const char *form, const outer *behind, const hg_tokens *tokens, int steps)
{
    size_t length = strcspn(form, " ");
    const char *named = hr_free_part(form, length);
    outer after = {form + length, behind};
    hg_tokens next = *tokens;

    if (named != NULL)
        return match(named, &after, tokens, steps);
    if (is_over(tokens) || !fits(tokens, form, length))
        return false;
    hg_tokens_next(&next);
    if (strncmp(form + length, " ~(", 3) == 0) {
        if (next.start != tokens->end || !hg_token_is_mark(&next, '(')
            || next.text.end - next.text.start > MOST_CALL_BYTES)
            return false;
        hg_tokens_next(&next);
        length += 3;
    }
    return match(form + length, behind, &next, steps);
}

static bool match(const char *form, const outer *behind, const hg_tokens *tokens, int steps)
{
    if (steps >= MOST_STEPS)
        return false;
    form += strspn(form, " ");
    if (strncmp(form, "...", 3) == 0)
        return true;
    switch (*form) {
    case '\0':
    case ']':
    case '}':
    case '>':
    case '/':
        return behind == NULL ? is_over(tokens)
                              : match(behind->form, behind->next, tokens, steps + 1);
    case '[':
    case '{':
    case '<':
        return match_group(form, behind, tokens, steps + 1);
    default:
        return match_word(form, behind, tokens, steps + 1);
    }
}

bool hr_is_free(const hg_tokens *tokens)
{
    const char *const *forms;
    uint32_t count = hr_free_forms(tokens->text.dialect, &forms);

    if (tokens->piece != HG_PIECE_WORD)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if ((*tokens->start | 32) == forms[i][0] && fits(tokens, forms[i], strcspn(forms[i], " "))
            && match(forms[i], NULL, tokens, 0))
            return true;
    return false;
}
