// What NIXL's agent finds in libplugin_POLYRAIL.so.

#include <exception>

#include "engine.h"
#include "log.h"
#include "polyrail.h"
#include "reference.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

// `polyrail nixl install --undo` looks for this text in a file before it removes it; exported, so that it stays as it is.
EXPORTED const char polyrail_nixl_backend[];
const char polyrail_nixl_backend[] = "Polyrail's backend for NIXL";

namespace {

using polyrail_nixl::Engine;
using polyrail_nixl::Level;

nixlBackendEngine *create_engine(const nixlBackendInitParams *params) {
    try {
        return new Engine(params);
    } catch (const std::exception &error) {
        polyrail_nixl::log(Level::Error, std::string("backend POLYRAIL was not created: see above (") + error.what() + ")");
        return nullptr;
    }
}

void destroy_engine(nixlBackendEngine *engine) { delete engine; }

const char *name() { return "POLYRAIL"; }

const char *version() { return polyrail_version(); }

// The parameters that people set most. Every setting of Polyrail is one, by its name; empty is its default.
nixl_b_params_t options() {
    return {{"rails", ""}, {"preset", ""}, {"config_file", ""}, {"secret_file", ""}, {"peer_timeout_ms", ""}};
}

} // namespace

EXPORTED nixlBackendPlugin *nixl_plugin_init() {
    static nixlBackendPlugin plugin = {NIXL_PLUGIN_API_VERSION, create_engine, destroy_engine,       name, version,
                                       options,                 Engine::memory_kinds};
    try {
        const std::string difference = polyrail_nixl::difference_from_nixl();
        if (difference.empty()) {
            return &plugin;
        }
        polyrail_nixl::log(Level::Error, std::string(polyrail_nixl_backend) + " was built for NIXL 1.3 to 1.5, and the NIXL here differs: " +
                                             difference + "; build it with this NIXL's headers, or use another version of NIXL");
    } catch (const std::exception &error) {
        polyrail_nixl::log(Level::Error, std::string("can't look at NIXL's own backends: ") + error.what());
    }
    return nullptr;
}

EXPORTED void nixl_plugin_fini() {}
