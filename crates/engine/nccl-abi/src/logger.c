/* What a plugin logs, as finished text for Rust, which has no variadic functions of its own. */
#include <stdarg.h>
#include <stdio.h>

typedef void (*sink_t)(int level, unsigned long subsystems, const char *text);

static _Atomic(sink_t) sink;

static void logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
    char text[1024];
    va_list arguments;
    sink_t to = sink;
    (void)file, (void)line;
    if (!to || !format) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    to(level, subsystems, text);
}

typedef void (*logger_t)(int, unsigned long, const char *, int, const char *, ...);

/* The logger whose lines the sink gets from now on. */
logger_t polyrail_nccl_logger(sink_t to);

logger_t polyrail_nccl_logger(sink_t to) {
    sink = to;
    return logger;
}
