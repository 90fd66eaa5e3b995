/* fuzz.h: seeded dice, and mutations of bytes. A run is repeated by its seed: fuzz_x N SEED. */
#ifndef HEADGATE_TESTS_FUZZ_H
#define HEADGATE_TESTS_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    static const uint32_t edges[] = {0, 1, 2, 3, 4, 7, 8, 16, 255, 256, 65535, 65536, 0x7fffffff,
                                     0x80000000, 0xfffffff8, 0xffffffff};

    return edges[below(sizeof edges / sizeof *edges)];
}

#endif
