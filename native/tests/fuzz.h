/*
 * fuzz.h: seeded dice, and mutations of bytes. A run is repeated by its seed: fuzz_x N SEED.
 *
 * Every fuzzer has one function that takes an input, LLVMFuzzerTestOneInput. libFuzzer brings a main of
 * its own (HG_LIBFUZZER); else a fuzzer's own main makes inputs by dice.
 */
#ifndef HEADGATE_TESTS_FUZZ_H
#define HEADGATE_TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t dice_state;

static inline uint64_t dice(void) /* splitmix64 */
{
    uint64_t z = dice_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline size_t below(size_t most)
{
    return most == 0 ? 0 : (size_t) (dice() % most);
}

static inline unsigned long begin(int argc, char **argv)
{
    dice_state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    return argc > 1 ? strtoul(argv[1], NULL, 10) : 10000;
}

/* A number that is likely to be on some edge. */
static inline uint32_t edge(void)
{
    static const uint32_t edges[] = {0,          1,          2,          3,         4,     7,
                                     8,          16,         255,        256,       65535, 65536,
                                     0x7fffffff, 0x80000000, 0xfffffff8, 0xffffffff};

    return edges[below(sizeof edges / sizeof *edges)];
}

/* ── Inputs that are changes to something sound ───────────────────────────── */

/* Six bytes each: which of its 32-bit words, and its value. */
#define EDIT_BYTES 6u

static inline void apply_edits(void *target, size_t length, const uint8_t *edits, size_t size)
{
    for (; size >= EDIT_BYTES && length >= 4; edits += EDIT_BYTES, size -= EDIT_BYTES) {
        size_t at = (edits[0] | (size_t) edits[1] << 8) % (length / 4);

        memcpy((char *) target + at * 4, edits + 2, 4);
    }
}

static inline void put_edit(uint8_t *edit, uint32_t word, uint32_t value)
{
    edit[0] = (uint8_t) word;
    edit[1] = (uint8_t) (word >> 8);
    memcpy(edit + 2, &value, 4);
}

#endif
