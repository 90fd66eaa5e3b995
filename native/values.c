/* values.c: numbers, times and addresses of a policy's document, and how they are quoted. */
#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "document.h"

#define MAX_INSTANT_S 1e12
#define MAX_GUESSED 64 /* bytes of a name that is compared with the known ones */

const char *hg_kind_words(const hg_json_value *value)
{
    static const char *const words[] = {
        [HG_JSON_NULL] = "null",       [HG_JSON_FALSE] = "a boolean", [HG_JSON_TRUE] = "a boolean",
        [HG_JSON_NUMBER] = "a number", [HG_JSON_STRING] = "a string", [HG_JSON_LIST] = "a list",
        [HG_JSON_TABLE] = "a table"};

    return words[value->kind];
}

hg_slice hg_text_of_value(const hg_document *document, const hg_json_value *value)
{
    return (hg_slice){document->json.texts + value->text, value->text_length};
}

/* ── As messages show them ────────────────────────────────────────────────── */

static size_t show_byte(char *out, uint8_t byte, char quote)
{
    static const char hex[] = "0123456789abcdef";
    const char *special = byte == '\0' ? NULL : strchr("\nn\rr\tt", byte);

    if (byte == '\\' || byte == (uint8_t) quote) {
        out[0] = '\\';
        out[1] = (char) byte;
        return 2;
    }
    if (byte < ' ' && special != NULL) {
        out[0] = '\\';
        out[1] = special[1];
        return 2;
    }
    if (byte < ' ' || byte == 0x7f) {
        memcpy(out, "\\x", 2);
        out[2] = hex[byte >> 4];
        out[3] = hex[byte & 15];
        return 4;
    }
    out[0] = (char) byte;
    return 1;
}

const char *hg_shown_text(hg_document *document, hg_slice text, uint32_t most)
{
    bool single = memchr(text.at, '\'', text.length) != NULL;
    char quote = single && memchr(text.at, '"', text.length) == NULL ? '"' : '\'';
    char *out = document->shown;
    size_t room = sizeof document->shown - 8;
    size_t at = 0;
    uint32_t characters = 0;

    out[at++] = quote;
    for (uint32_t i = 0; i < text.length && at < room; i++) {
        uint8_t byte = (uint8_t) text.at[i];

        characters += (byte & 0xc0) != 0x80;
        if (characters > most)
            break;
        at += show_byte(out + at, byte, quote);
    }
    out[at++] = quote;
    out[at] = '\0';
    return out;
}

const char *hg_shown(hg_document *document, const hg_json_value *value)
{
    switch (value->kind) {
    case HG_JSON_STRING:
        return hg_shown_text(document, hg_text_of_value(document, value), UINT32_MAX);
    case HG_JSON_NUMBER:
        return document->json.texts + value->text;
    case HG_JSON_NULL:
        return "None";
    case HG_JSON_TRUE:
        return "True";
    case HG_JSON_FALSE:
        return "False";
    default:
        return hg_kind_words(value);
    }
}

/* ── The nearest name that is known ───────────────────────────────────────── */

/* Bytes in common blocks: the longest one, and those on both sides of it, as Python's difflib.
 * Recursive, but each level takes a byte away from strings of at most MAX_GUESSED. */
static uint32_t common(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t best = 0;
    size_t best_a = 0;
    size_t best_b = 0;

    for (size_t i = 0; i < a_length; i++)
        for (size_t j = 0; j < b_length; j++) {
            size_t run = 0;

            while (i + run < a_length && j + run < b_length && a[i + run] == b[j + run])
                run++;
            if (run > best) {
                best = run;
                best_a = i;
                best_b = j;
            }
        }
    if (best == 0)
        return 0;
    return (uint32_t) best + common(a, best_a, b, best_b)
           + common(a + best_a + best, a_length - best_a - best, b + best_b + best,
                    b_length - best_b - best);
}

static const char *nearest(hg_slice given, const char *const *known, size_t count)
{
    const char *found = NULL;
    double best = 0.5;

    if (given.length > MAX_GUESSED)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(known[i]);
        double ratio = 2.0 * common(known[i], length, given.at, given.length)
                       / (double) (length + given.length);

        if (ratio < best || (ratio == best && found != NULL && strcmp(known[i], found) < 0))
            continue;
        best = ratio;
        found = known[i];
    }
    return found;
}

bool hg_unknown(hg_document *document, const char *what, hg_slice given, const char *const *known,
                size_t count)
{
    const char *near = nearest(given, known, count);
    char list[300] = "";
    size_t length = 0;
    const char *last = "";

    if (near != NULL)
        return hg_fault(document, "unknown %s %s; did you mean '%s'?", what,
                        hg_shown_text(document, given, UINT32_MAX), near);
    for (size_t i = 0; i < count; i++) {
        const char *next = NULL;

        for (size_t j = 0; j < count; j++)
            if (strcmp(known[j], last) > 0 && (next == NULL || strcmp(known[j], next) < 0))
                next = known[j];
        if (next == NULL || length + strlen(next) + 3 > sizeof list)
            break;
        length += (size_t) snprintf(list + length, sizeof list - length, "%s%s",
                                    i == 0 ? "" : ", ", next);
        last = next;
    }
    return hg_fault(document, "unknown %s %s; known: %s", what,
                    hg_shown_text(document, given, UINT32_MAX), list);
}

/* ── Numbers ──────────────────────────────────────────────────────────────── */

typedef struct number {
    double value;
    bool whole; /* written without a point or an exponent */
} number;

static number number_of(const hg_document *document, const hg_json_value *value)
{
    const char *text = document->json.texts + value->text;

    return (number){strtod(text, NULL), strpbrk(text, ".eE") == NULL};
}

/* As Python writes it: the fewest digits that read back as the same number. */
static const char *shown_number(hg_document *document, number given)
{
    char *out = document->shown;
    size_t room = sizeof document->shown;
    double size = fabs(given.value);

    if (given.whole && size >= 1e15)
        return "a number of more than 15 digits";
    if (given.whole)
        snprintf(out, room, "%.0f", given.value + 0.0);
    else if (size != 0 && (size < 1e-4 || size >= 1e16))
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(out, room, "%.*g", digits, given.value);
            if (strtod(out, NULL) == given.value)
                break;
        }
    else
        for (int decimals = 1; decimals <= 25; decimals++) {
            snprintf(out, room, "%.*f", decimals, given.value);
            if (strtod(out, NULL) == given.value)
                break;
        }
    return out;
}

static bool in_range(hg_document *document, const hg_json_value *value, double most, number *out)
{
    if (value->kind != HG_JSON_NUMBER)
        return hg_fault(document, "must be a number, not %s", hg_kind_words(value));
    *out = number_of(document, value);
    if (out->value > most)
        return hg_fault(document, "%s is more than %.0f", shown_number(document, *out), most);
    if (out->value < 0)
        return hg_fault(document, "%s is less than 0", shown_number(document, *out));
    return true;
}

bool hg_read_thousandths(hg_document *document, const hg_json_value *value, uint32_t most,
                         uint32_t *out)
{
    number given;
    double thousandths;

    if (!in_range(document, value, most, &given))
        return false;
    thousandths = rint(given.value * 1000);
    if (thousandths / 1000 != given.value)
        return hg_fault(document, "%s is finer than a thousandth; round it",
                        shown_number(document, given));
    *out = (uint32_t) thousandths;
    return true;
}

bool hg_read_whole(hg_document *document, const hg_json_value *value, uint32_t most, uint32_t *out)
{
    number given;

    if (!in_range(document, value, most, &given))
        return false;
    if (!given.whole)
        return hg_fault(document, "%s is no whole number", shown_number(document, given));
    *out = (uint32_t) given.value;
    return true;
}

/* ── Times ────────────────────────────────────────────────────────────────── */

/* Days from 1970-01-01 (H. Hinnant, days_from_civil). */
static int64_t days_from_civil(int year, int month, int day)
{
    int64_t shifted = year - (month <= 2);
    int64_t era = shifted / 400;
    int64_t year_of_era = shifted - era * 400;
    int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

    return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year
           - 719468;
}

static int days_in_month(int year, int month)
{
    static const uint8_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;

    return month == 2 && leap ? 29 : days[month - 1];
}

/* Reads along a pattern: 9 stands for a digit, whose value is added to the number that follows in
 * `out`; T for a T or a space; everything else for itself. NULL: it does not read like that. */
static const char *read_digits(const char *text, const char *pattern, int *out)
{
    for (; *pattern != '\0'; pattern++, text++) {
        if (*pattern == '9') {
            if (*text < '0' || *text > '9')
                return NULL;
            *out = *out * 10 + *text - '0';
            continue;
        }
        if (*pattern == 'T' ? *text != 'T' && *text != 't' && *text != ' ' : *text != *pattern)
            return NULL;
        out++;
    }
    return text;
}

/* Behind the zone, NULL if there is none. */
static const char *read_zone(const char *text, double *offset_s)
{
    int parts[2] = {0, 0};
    const char *end;

    *offset_s = 0;
    if (*text == 'Z' || *text == 'z')
        return text + 1;
    if (*text != '+' && *text != '-')
        return NULL;
    end = read_digits(text + 1, "99:99", parts);
    *offset_s = (parts[0] * 60 + parts[1]) * (*text == '-' ? -60.0 : 60.0);
    return end;
}

/* .123456789, as a double; `text` stays where there is none. */
static const char *read_fraction(const char *text, double *fraction)
{
    size_t digits = strspn(text + (*text == '.'), "0123456789");
    char copy[16];

    *fraction = 0;
    if (*text != '.')
        return text;
    if (digits < 1 || digits > 9)
        return NULL;
    memcpy(copy, text, digits + 1);
    copy[digits + 1] = '\0';
    *fraction = strtod(copy, NULL);
    return text + digits + 1;
}

static bool read_date_time(hg_document *document, const hg_json_value *value, double *out_s)
{
    const char *text = document->json.texts + value->text;
    int p[6] = {0, 0, 0, 0, 0, 0}; /* year, month, day, hour, minute, second */
    double fraction = 0;
    double offset_s = 0;
    const char *at = read_digits(text, "9999-99-99T99:99", p);

    if (at != NULL && *at == ':') {
        at = read_digits(at + 1, "99", &p[5]);
        if (at != NULL)
            at = read_fraction(at, &fraction);
    }
    if (at != NULL)
        at = read_zone(at, &offset_s);
    if (at == NULL || at != text + value->text_length)
        return hg_fault(document, "is %s, must read like 2024-05-17T16:00:00Z or …+02:00",
                        hg_shown(document, value));
    if (p[0] == 0 || p[1] < 1 || p[1] > 12 || p[2] < 1 || p[2] > days_in_month(p[0], p[1])
        || p[3] > 23 || p[4] > 59 || p[5] > 59)
        return hg_fault(document, "is %s, which is no date and time", hg_shown(document, value));
    *out_s = (double) (days_from_civil(p[0], p[1], p[2]) * 86400 + p[3] * 3600 + p[4] * 60 + p[5])
             + fraction - offset_s;
    return true;
}

bool hg_read_instant(hg_document *document, const hg_json_value *value, int64_t *out_ms)
{
    number given;
    double seconds = 0;

    if (value->kind == HG_JSON_STRING) {
        if (!read_date_time(document, value, &seconds))
            return false;
    } else if (value->kind == HG_JSON_NUMBER) {
        if (!in_range(document, value, MAX_INSTANT_S, &given))
            return false;
        seconds = given.value;
    } else {
        return hg_fault(document, "must be a date and time such as 2026-11-16T09:00:00Z, "
                                  "or Unix seconds");
    }
    *out_ms = (int64_t) rint(seconds * 1000);
    if (*out_ms < 1)
        return hg_fault(document, "is before 1970; leave it out for a budget without an end");
    return true;
}

/* ── What rules compare ───────────────────────────────────────────────────── */

static bool packed_number(hg_condition *out, uint64_t number)
{
    hg_put_u64(out->packed, number);
    out->packed_length = 8;
    return true;
}

/* A whole number of at most 20 digits, as text and as JSON writes it. */
static bool is_whole_text(hg_slice text)
{
    uint32_t sign = text.length > 0 && text.at[0] == '-';

    if (text.length == sign)
        return false;
    for (uint32_t i = sign; i < text.length; i++)
        if (text.at[i] < '0' || text.at[i] > '9')
            return false;
    return true;
}

/* Signed or not: 64 bits. False: more than that. */
static bool whole_bits(hg_slice text, uint64_t *out)
{
    bool negative = text.at[0] == '-';
    uint64_t number = 0;

    for (uint32_t i = negative; i < text.length; i++) {
        uint64_t digit = (uint64_t) (text.at[i] - '0');

        if (number > (UINT64_MAX - digit) / 10)
            return false;
        number = number * 10 + digit;
    }
    if (negative && number > UINT64_C(1) << 63)
        return false;
    *out = negative ? 0 - number : number;
    return true;
}

bool hg_read_query(hg_document *document, const hg_json_value *value, hg_condition *out)
{
    hg_slice text = hg_text_of_value(document, value);
    bool stated = value->kind == HG_JSON_NUMBER || value->kind == HG_JSON_STRING;
    uint64_t number;

    if (!stated || !is_whole_text(text)
        || (value->kind == HG_JSON_STRING && text.length - (text.at[0] == '-') > 20))
        return hg_fault(document,
                        "must be the server's query id, a whole number such as -4018512342");
    if (!whole_bits(text, &number))
        return hg_fault(document, "is no number of 64 bits, as a query id is");
    if (number == 0)
        return hg_fault(document,
                        "is 0, which the server says of a statement without a query id");
    return packed_number(out, number);
}

bool hg_read_fingerprint(hg_document *document, const hg_json_value *value, hg_condition *out)
{
    hg_slice text = hg_text_of_value(document, value);
    uint64_t number = 0;

    if (text.length != 16 || strspn(text.at, "0123456789abcdefABCDEF") != 16)
        return hg_fault(document, "is %s, must be the 16 hexadecimal digits of a fingerprint",
                        hg_shown_text(document, text, 40));
    for (int i = 0; i < 16; i++) {
        char digit = text.at[i];

        number = number << 4 | (uint64_t) (digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10);
    }
    return packed_number(out, number);
}

typedef struct prefix {
    uint8_t family;
    uint8_t address[16];
    uint32_t bits;
} prefix;

/* Only what an address or a prefix is written with: inet_pton and atoi would take more. */
static bool reads_like_prefix(hg_slice text)
{
    size_t address = strspn(text.at, "0123456789abcdefABCDEF.:");
    const char *bits = text.at + address + 1;
    size_t digits;

    if (address == 0)
        return false;
    if (address == text.length)
        return true;
    digits = text.at[address] == '/' ? strspn(bits, "0123456789") : 0;
    return digits >= 1 && digits <= 3 && (digits == 1 || bits[0] != '0')
           && address + 1 + digits == text.length;
}

static bool prefix_of(hg_slice text, prefix *out)
{
    char address[64];
    const char *slash = memchr(text.at, '/', text.length);
    size_t length = slash == NULL ? text.length : (size_t) (slash - text.at);
    uint32_t most;

    if (length >= sizeof address)
        return false;
    memcpy(address, text.at, length);
    address[length] = '\0';
    out->family = memchr(address, ':', length) != NULL ? 6 : 4;
    if (inet_pton(out->family == 4 ? AF_INET : AF_INET6, address, out->address) != 1)
        return false;
    most = out->family == 4 ? 32 : 128;
    out->bits = slash == NULL ? most : (uint32_t) atoi(slash + 1);
    return out->bits <= most;
}

static const char *prefix_text(uint8_t family, const uint8_t *address, uint32_t bits, char *out,
                               size_t room)
{
    size_t length = hg_address_text(family, address, out, room);

    snprintf(out + length, room - length, "/%u", bits);
    return out;
}

bool hg_read_address(hg_document *document, const hg_json_value *value, hg_condition *out)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    hg_slice text = hg_text_of_value(document, value);
    char better[64];
    uint8_t masked[16];
    prefix given;
    uint32_t bytes;

    if (!reads_like_prefix(text))
        return hg_fault(document, "is %s, must be an address or a prefix such as 10.0.0.0/8",
                        hg_shown_text(document, text, 50));
    if (!prefix_of(text, &given))
        return hg_fault(document, "is %s, which is no address or prefix",
                        hg_shown(document, value));
    bytes = given.family == 4 ? 4 : 16;
    memcpy(masked, given.address, bytes);
    hg_mask_address(masked, bytes, given.bits);
    if (given.family == 6 && given.bits >= 96 && memcmp(masked, mapped, sizeof mapped) == 0) {
        prefix_text(4, masked + 12, given.bits - 96, better, sizeof better);
        return hg_fault(document, "is %s: the server sees such clients as IPv4, write %s",
                        hg_shown(document, value), better);
    }
    if (memcmp(masked, given.address, bytes) != 0) {
        prefix_text(given.family, masked, given.bits, better, sizeof better);
        return hg_fault(document, "is %s, which has bits beyond its prefix; write %s",
                        hg_shown(document, value), better);
    }
    memcpy(out->packed, masked, bytes);
    out->packed[bytes] = (uint8_t) given.bits;
    out->packed_length = (uint8_t) (bytes + 1);
    return true;
}
