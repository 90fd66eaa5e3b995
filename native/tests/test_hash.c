/* The hash and the checksum are what other programs reckon, too. */
#include <assert.h>
#include <string.h>

#include "headgate.h"

#define LONG 20011u

/* The polynomial bit by bit, with no table to be wrong. */
static uint32_t crc_by_bits(const uint8_t *bytes, size_t length)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

/* Long ones go eight bytes at a time, from any address and with any rest; so do their pieces. */
static void test_long_checksums(void)
{
    static uint8_t bytes[LONG];

    for (size_t i = 0; i < LONG; i++)
        bytes[i] = (uint8_t) (i * 2654435761u >> 13);
    for (size_t length = 4090; length < 4110; length++)
        for (size_t start = 0; start < 9; start++)
            assert(hg_crc32(0, bytes + start, length) == crc_by_bits(bytes + start, length));
    for (size_t cut = 0; cut <= LONG; cut += 997)
        assert(hg_crc32(hg_crc32(0, bytes, cut), bytes + cut, LONG - cut)
               == crc_by_bits(bytes, LONG));
}

int main(void)
{
    /* Of src/headgate/budgets/model.py. */
    assert(hg_hash(0, "", 0) == UINT64_C(0x2180a92350d49cce));
    assert(hg_hash(0, "username", 8) == UINT64_C(0x3cd3abdaab4aa04b));
    assert(hg_hash(2, "etl", 3) == UINT64_C(0x9ee83ee81c96ce24));
    assert(hg_hash(1, "etl", 3) != hg_hash(2, "etl", 3));
    /* Of zlib: the check value of the polynomial. */
    assert(hg_crc32(0, "123456789", 9) == 0xcbf43926u);
    assert(hg_crc32(hg_crc32(0, "1234", 4), "56789", 5) == 0xcbf43926u);
    assert(hg_crc32(0, "", 0) == 0);
    test_long_checksums();
    return 0;
}
