/* nccl-harness: calls a net plugin as NCCL's proxy does, and measures it. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "bench.h"
#include "cases.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

static const char usage[] =
    "usage: nccl-harness LIBRARY [--abi N|all] [OPTION...] [CASE...]\n"
    "       nccl-harness LIBRARY --bench [--against socket-like] [OPTION...]\n"
    "       nccl-harness --list\n"
    "\n"
    "Loads a net plugin as NCCL does and calls it as NCCL's proxy does. Without a case all are run.\n"
    "\n"
    "  --abi 6..12|all      version of the interface (12)\n"
    "  --quick              less data and fewer rounds\n"
    "  --patience N         factor on all deadlines, for tools that slow programs down (1)\n"
    "  --call-limit-ms N    the longest that one call may take (2000), without what it waits for a CPU\n"
    "  --post-limit-ms N    the same for isend, irecv and test (50)\n"
    "  --longest            also print the longest calls of each kind\n"
    "  --fds-per-peer N     file descriptors per peer process (32)\n"
    "  --death-s N          requests with a dead peer end within (30)\n"
    "  --verbose            also print the plugin's log\n";

static int runs_cases(char **names, int count, int first_abi, int last_abi);
static bool runs_case(const struct test_case *, int abi);
static long number_after(int *i, int argc, char **argv, long least, long most);
static void lists(void);
static _Noreturn void misused(const char *what, const char *word);

int main(int argc, char **argv) {
    char *names[256];
    int count = 0, first_abi = ABI_NEWEST, last_abi = ABI_NEWEST;
    bool measures = false;
    static char library[PATH_MAX];
    struct bench_settings bench = bench_defaults();
    /* A peer that is killed must not kill the harness by its pipes. */
    signal(SIGPIPE, SIG_IGN);
    refuse_auxv_under_valgrind();
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!strcmp(word, "--list")) {
            lists();
            return 0;
        } else if (!strcmp(word, "--help")) {
            fputs(usage, stdout);
            fputs(bench_usage, stdout);
            return 0;
        } else if (!strcmp(word, "--abi") && i + 1 < argc && !strcmp(argv[i + 1], "all")) {
            first_abi = ABI_OLDEST;
            i++;
        } else if (!strcmp(word, "--abi")) {
            first_abi = last_abi = (int)number_after(&i, argc, argv, ABI_OLDEST, ABI_NEWEST);
        } else if (!strcmp(word, "--quick")) {
            settings.quick = true;
        } else if (!strcmp(word, "--verbose")) {
            settings.verbose = true;
        } else if (!strcmp(word, "--patience")) {
            settings.patience = (unsigned)number_after(&i, argc, argv, 1, 1000);
        } else if (!strcmp(word, "--call-limit-ms")) {
            settings.call_limit_ms = (unsigned)number_after(&i, argc, argv, 1, 1000000);
        } else if (!strcmp(word, "--post-limit-ms")) {
            settings.post_limit_ms = (unsigned)number_after(&i, argc, argv, 1, 1000000);
        } else if (!strcmp(word, "--longest")) {
            settings.longest = true;
        } else if (!strcmp(word, "--fds-per-peer")) {
            settings.fds_per_peer = (unsigned)number_after(&i, argc, argv, 1, 10000);
        } else if (!strcmp(word, "--death-s")) {
            settings.death_s = (unsigned)number_after(&i, argc, argv, 1, 3600);
        } else if (!strcmp(word, "--bench")) {
            measures = true;
        } else if (bench_option(&bench, word, i + 1 < argc ? argv[i + 1] : NULL)) {
            i += bench_option_has_value(word);
        } else if (word[0] == '-') {
            misused("unknown option, or a value that it cannot have:", word);
        } else if (!settings.library) {
            if (!realpath(word, library)) {
                misused("no such library:", word);
            }
            settings.library = library;
        } else if (count < 256) {
            names[count++] = argv[i];
        }
    }
    if (!settings.library) {
        misused("a library is needed", "");
    }
    settings.abi = last_abi;
    if (measures) {
        return bench_runs(&bench) ? 0 : EXIT_FAILED;
    }
    return runs_cases(names, count, first_abi, last_abi);
}

static int runs_cases(char **names, int count, int first_abi, int last_abi) {
    int ran = 0, failed = 0;
    for (int n = 0; n < count; n++) {
        bool known = false;
        for (int c = 0; c < cases_count; c++) {
            known |= !strcmp(names[n], cases[c].name);
        }
        if (!known) {
            misused("no such case (--list names them):", names[n]);
        }
    }
    for (int abi = first_abi; abi <= last_abi; abi++) {
        for (int c = 0; c < cases_count; c++) {
            bool wanted = count == 0;
            for (int n = 0; n < count; n++) {
                wanted |= !strcmp(names[n], cases[c].name);
            }
            if (wanted && abi >= cases[c].since) {
                ran++;
                failed += !runs_case(&cases[c], abi);
            }
        }
    }
    printf("%d cases passed, %d failed\n", ran - failed, failed);
    if (ran == 0) {
        misused("nothing was run: no case chosen is about this version", "");
    }
    return failed ? EXIT_FAILED : 0;
}

static bool runs_case(const struct test_case *test, int abi) {
    settings.abi = abi;
    uint64_t begun_ns = now_ns();
    if (settings.verbose) {
        printf("v%-2d %-18s %s\n", abi, test->name, test->says);
    }
    bool good = world_run(test->name, test->processes, test->ranks_per_process, test->deadline_s, test->run);
    printf("v%-2d %-18s %s  %5.2f s\n", abi, test->name, good ? "ok    " : "FAILED", (double)(now_ns() - begun_ns) / 1e9);
    if (!good) {
        printf("    must hold: %s\n", test->says);
    }
    fflush(stdout);
    return good;
}

static long number_after(int *i, int argc, char **argv, long least, long most) {
    const char *option = argv[*i];
    if (*i + 1 >= argc) {
        misused("a number is missing after", option);
    }
    char *end;
    long number = strtol(argv[++*i], &end, 10);
    if (*end || end == argv[*i] || number < least || number > most) {
        fprintf(stderr, "nccl-harness: %s takes a number from %ld to %ld, not %s\n", option, least, most, argv[*i]);
        exit(EXIT_USAGE);
    }
    return number;
}

static void lists(void) {
    for (int c = 0; c < cases_count; c++) {
        printf("%-18s %s\n", cases[c].name, cases[c].says);
    }
}

static _Noreturn void misused(const char *what, const char *word) {
    fprintf(stderr, "nccl-harness: %s %s\n%s%s", what, word, usage, bench_usage);
    exit(EXIT_USAGE);
}
