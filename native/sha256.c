/*
 * sha256.c: HMAC-SHA256 (FIPS 180-4, RFC 2104), for signed tags. Of its own, because a backend may neither
 * allocate nor fail where it needs it, as libraries may.
 */
#include "internal.h"

#define BLOCK 64u

typedef struct sha256 {
    uint32_t state[8];
    uint64_t length;
    uint8_t block[BLOCK];
} sha256;

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static inline uint32_t turned(uint32_t word, int by)
{
    return word >> by | word << (32 - by);
}

static void mix(sha256 *sha)
{
    uint32_t w[64], s[8];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t) sha->block[4 * i] << 24 | (uint32_t) sha->block[4 * i + 1] << 16
               | (uint32_t) sha->block[4 * i + 2] << 8 | sha->block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7]
               + (turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ w[i - 15] >> 3)
               + (turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(s, sha->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25))
                       + ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + w[i];
        uint32_t two = (turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22))
                       + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));

        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        sha->state[i] += s[i];
}

static void begin(sha256 *sha)
{
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    memcpy(sha->state, first, sizeof first);
    sha->length = 0;
}

static void add(sha256 *sha, const void *bytes, size_t length)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < length; i++) {
        sha->block[sha->length++ % BLOCK] = at[i];
        if (sha->length % BLOCK == 0)
            mix(sha);
    }
}

static void end(sha256 *sha, uint8_t digest[32])
{
    static const uint8_t zeroes[BLOCK];
    uint64_t bits = sha->length * 8;
    uint8_t big[8];

    for (int i = 0; i < 8; i++)
        big[i] = (uint8_t) (bits >> (56 - 8 * i));
    add(sha, "\x80", 1);
    add(sha, zeroes, (BLOCK + 56 - sha->length % BLOCK) % BLOCK);
    add(sha, big, sizeof big);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t) (sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void hg_hmac_sha256(const uint8_t *key, size_t key_length, const void *message, size_t length,
                    uint8_t digest[32])
{
    uint8_t inner[BLOCK] = {0}, outer[BLOCK];
    sha256 sha;

    if (key_length > BLOCK) {
        begin(&sha);
        add(&sha, key, key_length);
        end(&sha, inner);
    } else {
        memcpy(inner, key, key_length);
    }
    for (uint32_t i = 0; i < BLOCK; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    begin(&sha);
    add(&sha, inner, BLOCK);
    add(&sha, message, length);
    end(&sha, digest);
    begin(&sha);
    add(&sha, outer, BLOCK);
    add(&sha, digest, 32);
    end(&sha, digest);
}
