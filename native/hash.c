/* hash.c: the hash of pairs, keys and buckets, and the checksum of a policy. */
#include "layout.h"

uint64_t hg_hash(uint64_t seed, const void *bytes, size_t length)
{
    return hg_hash_end(hg_hash_more(hg_hash_begin(seed), bytes, length));
}

/* A nibble at a time, 64 bytes of table, for what is short. */
static const uint32_t crc_nibbles[16] = {0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu,
                                         0x76dc4190u, 0x6b6b51f4u, 0x4db26158u, 0x5005713cu,
                                         0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu,
                                         0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu};

static uint32_t crc_byte(uint32_t crc)
{
    crc = crc_nibbles[crc & 15u] ^ (crc >> 4);
    return crc_nibbles[crc & 15u] ^ (crc >> 4);
}

static uint32_t crc_short(uint32_t crc, const uint8_t *at, size_t length)
{
    while (length-- > 0)
        crc = crc_byte(crc ^ *at++);
    return crc;
}

/* Eight bytes at a time. The tables are worked out on the stack, in less time than they save: there
 * is nothing to initialize, and no 8 KiB of numbers to read. */
static uint32_t crc_long(uint32_t crc, const uint8_t *at, size_t eights)
{
    uint32_t table[8][256];

    for (uint32_t byte = 0; byte < 256; byte++)
        table[0][byte] = crc_byte(byte);
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int step = 1; step < 8; step++)
            table[step][byte] = table[0][table[step - 1][byte] & 255u]
                                ^ (table[step - 1][byte] >> 8);
    for (; eights > 0; eights--, at += 8)
        crc = table[7][(crc ^ at[0]) & 255u] ^ table[6][((crc >> 8) ^ at[1]) & 255u]
              ^ table[5][((crc >> 16) ^ at[2]) & 255u] ^ table[4][((crc >> 24) ^ at[3]) & 255u]
              ^ table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^ table[0][at[7]];
    return crc;
}

uint32_t hg_crc32(uint32_t crc, const void *bytes, size_t length)
{
    const uint8_t *at = bytes;
    size_t eights = length < 4096 ? 0 : length / 8;

    crc = ~crc;
    if (eights > 0)
        crc = crc_long(crc, at, eights);
    return ~crc_short(crc, at + eights * 8, length - eights * 8);
}
