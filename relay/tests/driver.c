/*
 * driver.c: runs a fuzzer where there is no libFuzzer: fuzz_x N SEED CORPUS…
 *
 * Replays every file of the corpus, then N mutations of them, by a seed: bytes changed, pieces cut
 * out, doubled, exchanged with another file's, numbers set to edges. An input by which the run dies,
 * or that takes LONGEST_CPU_S, is written to <this program>.crash; give that file as CORPUS to run it
 * alone.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "fuzz.h"

#define MAX_FILES 4096
#define MAX_INPUT_BYTES 131072u
#define LONGEST_CPU_S 20 /* of the process's own: a busy machine is no fault of the input's */

typedef struct input {
    uint8_t *bytes;
    size_t length;
} input;

static input corpus[MAX_FILES];
static size_t corpus_count;
static char crash_path[512];
static input running;

/* UBSan's runtime knows of no callback: it aborts, as an assert does. */
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void)
{
    return "abort_on_error=1";
}

/* ASan calls it when it has found something; so does an abort, and the timer. */
static void keep_it(void)
{
    int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

    if (fd >= 0) {
        (void) !write(fd, running.bytes, running.length);
        close(fd);
    }
}

static void keep_it_and_die(int number)
{
    keep_it();
    signal(SIGABRT, SIG_DFL);
    (void) number;
    abort();
}

static void read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    input *one = &corpus[corpus_count];

    if (file == NULL || corpus_count == MAX_FILES) {
        fprintf(stderr, "%s: %s\n", path, file == NULL ? strerror(errno) : "more files than fit");
        exit(2);
    }
    one->bytes = malloc(MAX_INPUT_BYTES);
    one->length = fread(one->bytes, 1, MAX_INPUT_BYTES, file);
    fclose(file);
    corpus_count++;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(*(char *const *) left, *(char *const *) right);
}

/* By name, so that a seed means the same everywhere. */
static void read_directory(const char *path)
{
    DIR *directory = opendir(path);
    static char *names[MAX_FILES];
    size_t count = 0;
    struct dirent *entry;

    while (directory != NULL && (entry = readdir(directory)) != NULL)
        if (entry->d_name[0] != '.' && count < MAX_FILES)
            names[count++] = strdup(entry->d_name);
    if (directory != NULL)
        closedir(directory);
    qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count; i++) {
        char whole[1024];

        snprintf(whole, sizeof whole, "%s/%s", path, names[i]);
        read_file(whole);
        free(names[i]);
    }
}

/* A copy of exactly that size, so that one byte beyond is found. */
static void run_one(const uint8_t *bytes, size_t length)
{
    struct itimerval limit = {.it_value.tv_sec = LONGEST_CPU_S};
    uint8_t *exact = malloc(length == 0 ? 1 : length);

    memcpy(exact, bytes, length);
    running = (input){exact, length};
    setitimer(ITIMER_PROF, &limit, NULL);
    LLVMFuzzerTestOneInput(exact, length);
    running = (input){NULL, 0};
    free(exact);
}

static size_t insert(uint8_t *bytes, size_t length, const uint8_t *piece, size_t piece_length,
                     size_t at)
{
    if (length + piece_length > MAX_INPUT_BYTES)
        return length;
    memmove(bytes + at + piece_length, bytes + at, length - at);
    memcpy(bytes + at, piece, piece_length);
    return length + piece_length;
}

static void put_edge(uint8_t *bytes, size_t length)
{
    uint32_t number = edge();
    size_t width = (size_t) 1 << below(3);
    size_t at = below(length);
    bool big = below(2) == 0;

    for (size_t i = 0; i < width && at + i < length; i++)
        bytes[at + i] = (uint8_t) (number >> 8 * (big ? width - 1 - i : i));
}

static size_t insert_of_another(uint8_t *bytes, size_t length)
{
    const input *other = &corpus[below(corpus_count)];
    size_t from = below(other->length);
    size_t piece = below(other->length - from) + (other->length > 0);
    uint8_t copy[1024];

    if (piece > sizeof copy)
        piece = sizeof copy;
    memcpy(copy, other->bytes + from, piece);
    return insert(bytes, length, copy, piece, below(length + 1));
}

static size_t mutate(uint8_t *bytes, size_t length)
{
    uint8_t some[64];
    size_t at = below(length), piece;

    switch (length == 0 ? 5 : below(7)) {
    case 0:
        bytes[at] ^= (uint8_t) (1u << below(8));
        return length;
    case 1:
        bytes[at] = (uint8_t) dice();
        return length;
    case 2:
        put_edge(bytes, length);
        return length;
    case 3: /* cut out */
        piece = below(length - at < 64 ? length - at : 64) + 1;
        memmove(bytes + at, bytes + at + piece, length - at - piece);
        return length - piece;
    case 4: /* cut off */
        return at;
    case 5:
        piece = below(sizeof some);
        for (size_t i = 0; i < piece; i++)
            some[i] = (uint8_t) dice();
        return insert(bytes, length, some, piece, at);
    default:
        return insert_of_another(bytes, length);
    }
}

static void load(int argc, char **argv)
{
    for (int i = 3; i < argc; i++) {
        struct stat about;

        if (stat(argv[i], &about) == 0 && S_ISREG(about.st_mode))
            read_file(argv[i]);
        else
            read_directory(argv[i]);
    }
    if (corpus_count == 0) {
        corpus[0] = (input){calloc(1, 1), 0};
        corpus_count = 1;
        fprintf(stderr, "no corpus: mutations of nothing\n");
    }
}

int main(int argc, char **argv)
{
    unsigned long count = begin(argc, argv);
    static uint8_t bytes[MAX_INPUT_BYTES];
    const char *name = strrchr(argv[0], '/');
    uint64_t seed = dice_state;

    snprintf(crash_path, sizeof crash_path, "%s.crash", argv[0]);
    __sanitizer_set_death_callback(keep_it);
    signal(SIGABRT, keep_it_and_die);
    signal(SIGPROF, keep_it_and_die);
    load(argc, argv);
    for (size_t i = 0; i < corpus_count; i++)
        run_one(corpus[i].bytes, corpus[i].length);
    for (unsigned long i = 0; i < count; i++) {
        const input *from;
        size_t length;

        dice_state = seed * 1000003
                     + i; /* whatever the fuzzer rolled, the next input is the same */
        from = &corpus[below(corpus_count)];
        length = from->length;
        memcpy(bytes, from->bytes, length);
        for (size_t times = 1 + below(8); times > 0; times--)
            length = mutate(bytes, length);
        run_one(bytes, length);
    }
    printf("%s: %zu files, %lu mutations\n", name == NULL ? argv[0] : name + 1, corpus_count,
           count);
    for (size_t i = 0; i < corpus_count; i++)
        free(corpus[i].bytes);
    return 0;
}
