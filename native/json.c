/* json.c: see json.h. Recursive, to a depth that is bounded. */
#include "json.h"

#include <string.h>

static bool fail(hg_json *json, const char *fault)
{
    if (json->fault == NULL) {
        json->fault = fault;
        json->fault_at = (size_t) (json->at - json->start);
    }
    return false;
}

static void skip_space(hg_json *json)
{
    while (json->at < json->end
           && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
        json->at++;
}

static bool next_is(hg_json *json, char wanted)
{
    skip_space(json);
    if (json->at == json->end || *json->at != (uint8_t) wanted)
        return false;
    json->at++;
    return true;
}

static bool put(hg_json *json, uint32_t byte)
{
    if (json->used == json->texts_room)
        return fail(json, "there is no room for its texts");
    json->texts[json->used++] = (char) (uint8_t) byte;
    return true;
}

static bool put_character(hg_json *json, uint32_t code)
{
    if (code < 0x80)
        return put(json, code);
    if (code < 0x800)
        return put(json, 0xc0 | code >> 6) && put(json, 0x80 | (code & 63));
    if (code < 0x10000)
        return put(json, 0xe0 | code >> 12) && put(json, 0x80 | (code >> 6 & 63))
               && put(json, 0x80 | (code & 63));
    return put(json, 0xf0 | code >> 18) && put(json, 0x80 | (code >> 12 & 63))
           && put(json, 0x80 | (code >> 6 & 63)) && put(json, 0x80 | (code & 63));
}

/* Four hexadecimal digits. */
static bool read_unit(hg_json *json, uint32_t *unit)
{
    *unit = 0;
    for (int i = 0; i < 4; i++, json->at++) {
        uint8_t byte = json->at < json->end ? *json->at : 0;
        uint8_t low = byte | 32;

        if (byte >= '0' && byte <= '9')
            *unit = *unit * 16 + byte - '0';
        else if (low >= 'a' && low <= 'f')
            *unit = *unit * 16 + low - 'a' + 10;
        else
            return fail(json, "\\u wants four hexadecimal digits");
    }
    return true;
}

static bool read_unicode(hg_json *json)
{
    static const char half[] = "half a character (a lone surrogate), which no text has";
    uint32_t high;
    uint32_t low;

    if (!read_unit(json, &high))
        return false;
    if (high < 0xd800 || high > 0xdfff)
        return put_character(json, high);
    if (high > 0xdbff || json->end - json->at < 2 || json->at[0] != '\\' || json->at[1] != 'u')
        return fail(json, half);
    json->at += 2;
    if (!read_unit(json, &low))
        return false;
    if (low < 0xdc00 || low > 0xdfff)
        return fail(json, half);
    return put_character(json, 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00));
}

static bool read_escape(hg_json *json)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    uint8_t byte = json->at < json->end ? *json->at : 0;
    const char *found;

    if (byte == 'u') {
        json->at++;
        return read_unicode(json);
    }
    found = byte == 0 ? NULL : strchr(from, byte);
    if (found == NULL)
        return fail(json, "no such escape");
    json->at++;
    return put(json, (uint8_t) to[found - from]);
}

/* One character of more than a byte, which must be proper UTF-8: names are compared as bytes. */
static bool read_wide(hg_json *json)
{
    uint8_t lead = *json->at;
    uint32_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    uint32_t code = lead & (0x3fu >> more);
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};

    if (lead < 0xc2 || lead > 0xf4 || (size_t) (json->end - json->at) <= more)
        return fail(json, "not UTF-8");
    for (uint32_t i = 1; i <= more; i++) {
        if ((json->at[i] & 0xc0) != 0x80)
            return fail(json, "not UTF-8");
        code = code << 6 | (json->at[i] & 63);
    }
    if (code < least[more] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return fail(json, "not UTF-8");
    json->at += more + 1;
    return put_character(json, code);
}

static bool read_text(hg_json *json, uint32_t *text, uint32_t *length)
{
    if (!next_is(json, '"'))
        return fail(json, "a string is missing");
    *text = json->used;
    while (json->at < json->end && *json->at != '"') {
        bool read;

        if (*json->at < 0x20)
            return fail(json, "a control character in a string; write it as \\u00..");
        if (*json->at == '\\') {
            json->at++;
            read = read_escape(json);
        } else if (*json->at < 0x80) {
            read = put(json, *json->at++);
        } else {
            read = read_wide(json);
        }
        if (!read)
            return false;
    }
    if (json->at == json->end)
        return fail(json, "a string that does not end");
    json->at++;
    *length = json->used - *text;
    return put(json, 0);
}

static bool digits(hg_json *json)
{
    const uint8_t *first = json->at;

    while (json->at < json->end && *json->at >= '0' && *json->at <= '9')
        json->at++;
    return json->at > first || fail(json, "a digit is missing");
}

static bool has(const hg_json *json, char a, char b)
{
    return json->at < json->end && (*json->at == (uint8_t) a || *json->at == (uint8_t) b);
}

static bool read_number(hg_json *json, hg_json_value *value)
{
    const uint8_t *first = json->at;

    json->at += has(json, '-', '-');
    if (has(json, '0', '0'))
        json->at++;
    else if (!digits(json))
        return false;
    if (has(json, '.', '.')) {
        json->at++;
        if (!digits(json))
            return false;
    }
    if (has(json, 'e', 'E')) {
        json->at++;
        json->at += has(json, '+', '-');
        if (!digits(json))
            return false;
    }
    value->kind = HG_JSON_NUMBER;
    value->text = json->used;
    value->text_length = (uint32_t) (json->at - first);
    while (first < json->at)
        if (!put(json, *first++))
            return false;
    return put(json, 0);
}

static bool read_word(hg_json *json, const char *word, hg_json_kind kind, hg_json_value *value)
{
    size_t length = strlen(word);

    if ((size_t) (json->end - json->at) < length || memcmp(json->at, word, length) != 0)
        return fail(json, "neither a value nor true, false or null");
    json->at += length;
    value->kind = kind;
    return true;
}

static bool read_value(hg_json *json, uint32_t index);

/* Another value at the end of a list or table. */
static bool read_member(hg_json *json, uint32_t owner, uint32_t *last)
{
    uint32_t index = json->count;
    hg_json_value *value = &json->values[index];

    if (index == json->room)
        return fail(json, "there is no room for its values");
    json->count++;
    memset(value, 0, sizeof *value);
    if (json->values[owner].kind == HG_JSON_TABLE) {
        skip_space(json);
        if (!read_text(json, &value->key, &value->key_length))
            return false;
        if (!next_is(json, ':'))
            return fail(json, "a colon is missing behind a key");
    }
    if (*last == 0)
        json->values[owner].first = index;
    else
        json->values[*last].next = index;
    *last = index;
    json->values[owner].count++;
    return read_value(json, index);
}

static bool read_members(hg_json *json, uint32_t owner, char close)
{
    uint32_t last = 0;

    json->at++;
    if (++json->depth > HG_JSON_DEPTH)
        return fail(json, "nested too deep");
    if (!next_is(json, close)) {
        do {
            if (!read_member(json, owner, &last))
                return false;
        } while (next_is(json, ','));
        if (!next_is(json, close))
            return fail(json, "a comma or a closing bracket is missing");
    }
    json->depth--;
    return true;
}

static bool read_value(hg_json *json, uint32_t index)
{
    hg_json_value *value = &json->values[index];

    skip_space(json);
    if (json->at == json->end)
        return fail(json, "a value is missing");
    switch (*json->at) {
    case '{':
        value->kind = HG_JSON_TABLE;
        return read_members(json, index, '}');
    case '[':
        value->kind = HG_JSON_LIST;
        return read_members(json, index, ']');
    case '"':
        value->kind = HG_JSON_STRING;
        return read_text(json, &value->text, &value->text_length);
    case 't':
        return read_word(json, "true", HG_JSON_TRUE, value);
    case 'f':
        return read_word(json, "false", HG_JSON_FALSE, value);
    case 'n':
        return read_word(json, "null", HG_JSON_NULL, value);
    default:
        if (*json->at != '-' && (*json->at < '0' || *json->at > '9'))
            return fail(json, "neither a value nor true, false or null");
        return read_number(json, value);
    }
}

bool hg_json_read(hg_json *json, const char *text, size_t length)
{
    json->start = json->at = (const uint8_t *) text;
    json->end = json->start + length;
    json->count = json->used = json->depth = 0;
    json->fault = NULL;
    if (json->room == 0)
        return fail(json, "there is no room for its values");
    memset(&json->values[json->count++], 0, sizeof *json->values);
    if (!read_value(json, 0))
        return false;
    skip_space(json);
    return json->at == json->end || fail(json, "something follows the document");
}
