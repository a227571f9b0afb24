#include "log.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

#include "polyrail.h"

namespace polyrail_nixl {

namespace {

Level level_of(const char *name) {
    const std::pair<const char *, Level> known[] = {
        {"FATAL", Level::Error}, {"ERROR", Level::Error}, {"WARN", Level::Warn},
        {"INFO", Level::Info},   {"DEBUG", Level::Debug}, {"TRACE", Level::Debug},
    };
    for (const auto &[text, level] : known) {
        if (name != nullptr && strcasecmp(name, text) == 0) {
            return level;
        }
    }
    return Level::Warn;
}

} // namespace

bool logs(Level level) {
    static const Level most = level_of(getenv("NIXL_LOG_LEVEL"));
    return level <= most;
}

void log(Level level, const std::string &text) {
    if (!logs(level)) {
        return;
    }
    static const char *const names[] = {"ERROR", "WARN", "INFO", "DEBUG"};
    const char *name = names[static_cast<int>(level)];
    // One call, so that lines of several threads don't mix.
    fprintf(stderr, "%s polyrail[%d]: %s\n", name, static_cast<int>(getpid()), text.c_str());
}

nixl_status_t status_of(int polyrail_status) {
    switch (polyrail_status) {
    case POLYRAIL_OK:
        return NIXL_SUCCESS;
    case POLYRAIL_PENDING:
    case POLYRAIL_BUSY:
        return NIXL_IN_PROG;
    case POLYRAIL_ERR_ARGUMENT:
    case POLYRAIL_ERR_CONFIG:
    case POLYRAIL_ERR_RANGE:
    case POLYRAIL_ERR_TOO_LONG:
        return NIXL_ERR_INVALID_PARAM;
    case POLYRAIL_ERR_FORMAT:
    case POLYRAIL_ERR_FOREIGN:
        return NIXL_ERR_MISMATCH;
    case POLYRAIL_ERR_CONNECT:
    case POLYRAIL_ERR_PEER_LOST:
        return NIXL_ERR_REMOTE_DISCONNECT;
    case POLYRAIL_ERR_REGION_CLOSED:
        return NIXL_ERR_NOT_FOUND;
    case POLYRAIL_ERR_REFUSED:
        return NIXL_ERR_NOT_ALLOWED;
    case POLYRAIL_ERR_CANCELLED:
        return NIXL_ERR_CANCELED;
    case POLYRAIL_ERR_FORKED:
        return NIXL_ERR_NOT_SUPPORTED;
    default:
        return NIXL_ERR_BACKEND;
    }
}

nixl_status_t failed(const std::string &what, int polyrail_status) {
    const nixl_status_t status = status_of(polyrail_status);
    if (status < 0) {
        std::string text = what + ": " + polyrail_last_error();
        const char *help = polyrail_last_help();
        if (*help != '\0') {
            text += " (" + std::string(help) + ")";
        }
        log(Level::Error, text);
    }
    return status;
}

nixl_status_t refused(nixl_status_t status, const std::string &text) {
    log(Level::Error, text);
    return status;
}

} // namespace polyrail_nixl
