/* What a plugin warns of goes to standard error; it says the rest to nobody. */
#include <stdarg.h>
#include <stdio.h>

enum { LEVEL_WARN = 2 };

void collective_log(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);

void collective_log(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
    char text[512];
    va_list arguments;
    (void)subsystems, (void)file, (void)line;
    if (level != LEVEL_WARN || !format) {
        return;
    }
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    /* One call, so that lines of several threads don't mix. */
    fprintf(stderr, "%s\n", text);
}
