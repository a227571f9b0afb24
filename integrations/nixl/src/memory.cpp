// Memory: what the agent registers, what it tells others of it, and what others tell.

#include "engine.h"

#include <cstring>

#include "log.h"

namespace polyrail_nixl {

namespace {

// In front of a region's key, so that bytes of something else are told apart.
constexpr char KEY_MAGIC[] = "PLRK1";
constexpr size_t MAGIC_BYTES = sizeof(KEY_MAGIC) - 1;

const char *name_of(nixl_mem_t kind) {
    static const char *const names[] = {"DRAM", "VRAM", "BLK", "OBJ", "FILE"};
    return kind >= DRAM_SEG && kind <= FILE_SEG ? names[kind] : "unknown";
}

std::string described(nixl_mem_t kind, const nixlBasicDesc &mem) {
    char text[128];
    snprintf(text, sizeof(text), "%s memory at 0x%zx of %zu bytes (device %zu)", name_of(kind),
             static_cast<size_t>(mem.addr), mem.len, static_cast<size_t>(mem.devId));
    return text;
}

} // namespace

nixl_status_t Engine::registerMem(const nixlBlobDesc &mem, const nixl_mem_t &kind, nixlBackendMD *&out) {
    if (kind != DRAM_SEG && kind != VRAM_SEG) {
        return refused(NIXL_ERR_NOT_SUPPORTED, "can't register " + described(kind, mem) + ", allowed are DRAM and VRAM");
    }
    auto memory = std::make_unique<Memory>(kind, mem.addr, mem.len, mem.devId);
    polyrail_memory wanted = polyrail_memory_init();
    wanted.base = reinterpret_cast<void *>(mem.addr);
    wanted.length = mem.len;
    wanted.kind = kind == VRAM_SEG ? POLYRAIL_CUDA : POLYRAIL_HOST;
    wanted.access = POLYRAIL_REMOTE_READ | POLYRAIL_REMOTE_WRITE;
    const int status = polyrail_region_register(engine_.get(), &wanted, memory->region.out());
    if (status != POLYRAIL_OK) {
        return failed("can't register " + described(kind, mem), status);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    memories_[{kind, mem.addr}] = memory.get();
    out = memory.release();
    return NIXL_SUCCESS;
}

nixl_status_t Engine::deregisterMem(nixlBackendMD *meta) {
    std::unique_ptr<Memory> memory(static_cast<Memory *>(meta));
    if (!memory) {
        return refused(NIXL_ERR_INVALID_PARAM, "can't deregister memory without its metadata");
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = memories_.find({memory->kind, memory->base});
        if (found != memories_.end() && found->second == memory.get()) {
            memories_.erase(found);
        }
    }
    // Waits until nobody touches the memory any more.
    memory->region.reset();
    return NIXL_SUCCESS;
}

nixl_status_t Engine::getPublicData(const nixlBackendMD *meta, std::string &text) const {
    const auto *memory = static_cast<const Memory *>(meta);
    polyrail_bytes key = {};
    const int status = polyrail_region_key(memory->region.get(), &key);
    if (status != POLYRAIL_OK) {
        return failed("can't tell of memory", status);
    }
    text.assign(KEY_MAGIC, MAGIC_BYTES);
    text.append(reinterpret_cast<const char *>(key.data), key.length);
    polyrail_bytes_free(&key);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::loadRemoteMD(const nixlBlobDesc &input, const nixl_mem_t &kind, const std::string &agent,
                                   nixlBackendMD *&out) {
    const std::string &text = input.metaInfo;
    const std::string what = "can't use metadata of agent '" + agent + "' for its " + described(kind, input);
    if (text.compare(0, MAGIC_BYTES, KEY_MAGIC) != 0) {
        return refused(NIXL_ERR_MISMATCH,
                       what + ": it does not begin with " + KEY_MAGIC + "; use the same version of Polyrail's backend there");
    }
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!peers_.contains(agent)) {
            return refused(NIXL_ERR_NOT_FOUND, what + ": how to connect to that agent is not known; load that first");
        }
    }
    auto target = std::make_unique<Target>(input.addr, nullptr);
    const int status = polyrail_remote_import(engine_.get(), text.data() + MAGIC_BYTES, text.size() - MAGIC_BYTES,
                                              target->remote.out());
    if (status != POLYRAIL_OK) {
        return failed(what, status);
    }
    polyrail_region_info info = polyrail_region_info_init();
    if (polyrail_remote_describe(target->remote.get(), &info) != POLYRAIL_OK || info.length != input.len) {
        return refused(NIXL_ERR_MISMATCH, what + ": its key is of " + std::to_string(info.length) + " bytes");
    }
    out = target.release();
    return NIXL_SUCCESS;
}

nixl_status_t Engine::loadLocalMD(nixlBackendMD *input, nixlBackendMD *&out) {
    const auto *memory = static_cast<const Memory *>(input);
    out = new Target(memory->base, memory);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::unloadMD(nixlBackendMD *meta) {
    delete static_cast<Target *>(meta);
    return NIXL_SUCCESS;
}

nixl_status_t Engine::queryMem(const nixl_reg_dlist_t &descs, std::vector<nixl_query_resp_t> &resp) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const nixl_mem_t kind = descs.getType();
    for (int index = 0; index < descs.descCount(); index++) {
        const nixlBlobDesc &asked = descs[static_cast<size_t>(index)];
        nixl_query_resp_t answer;
        auto found = memories_.upper_bound({kind, asked.addr});
        if (found != memories_.begin()) {
            const Memory &memory = *(--found)->second;
            const uint64_t offset = asked.addr - memory.base;
            if (memory.kind == kind && memory.device == asked.devId && offset <= memory.length &&
                asked.len <= memory.length - offset) {
                answer = nixl_b_params_t{{"base", std::to_string(memory.base)},
                                         {"length", std::to_string(memory.length)}};
            }
        }
        resp.push_back(std::move(answer));
    }
    return NIXL_SUCCESS;
}

} // namespace polyrail_nixl
