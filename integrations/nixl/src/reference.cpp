#include "reference.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <vector>

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include "log.h"

namespace polyrail_nixl {

namespace {

// Names of the virtual functions in their order, as the compiler spells them behind the name of a class. A list of
// parameters that another place of the same text repeats is part of what is compared.
#define STRING_ "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
const char *const SLOTS[] = {
    "D1Ev",
    "D0Ev",
    "14supportsRemoteEv",
    "13supportsLocalEv",
    "13supportsNotifEv",
    "16getSupportedMemsEv",
    "11registerMemERK12nixlBlobDescRK10nixl_mem_tRP13nixlBackendMD",
    "13deregisterMemEP13nixlBackendMD",
    "7connectE" STRING_,
    "10disconnectE" STRING_,
    "8unloadMDEP13nixlBackendMD",
    "8prepXferERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES",
    "8postXferERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES",
    "9checkXferEP15nixlBackendReqH",
    "11releaseReqHEP15nixlBackendReqH",
    "11prepMemViewERK12nixlDescListI18nixlRemoteMetaDescERPvPK",
    "11prepMemViewERK12nixlDescListI12nixlMetaDescERPvPK",
    "14releaseMemViewEPv",
    "13getPublicDataEPK13nixlBackendMDRNS",
    "11getConnInfoERNS",
    "18loadRemoteConnInfoE" STRING_,
    "12loadRemoteMDERK12nixlBlobDescRK10nixl_mem_t" STRING_ "RP13nixlBackendMD",
    "11loadLocalMDEP13nixlBackendMDRS",
    "9getNotifsERSt6vector",
    "8genNotifE" STRING_,
    "8queryMemERK12nixlDescListI12nixlBlobDescERSt6vector",
    "16estimateXferCostERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES",
};
constexpr size_t SLOT_COUNT = std::size(SLOTS);

// Backends that come with NIXL and add no virtual functions of their own; then one that does.
struct Known {
    const char *file;
    const char *engine;
    bool adds;
};
const Known KNOWN[] = {
    {"libplugin_POSIX.so", "nixlPosixEngine", false},
    {"libplugin_LIBFABRIC.so", "nixlLibfabricEngine", false},
    {"libplugin_GDS.so", "nixlGdsEngine", false},
    {"libplugin_UCX.so", "nixlUcxEngine", true},
};

// In a table, before the functions: the offset to the top and the type.
constexpr size_t TABLE_HEAD = 2;

#if defined(__x86_64__)
constexpr uint32_t RELATIVE = R_X86_64_RELATIVE;
#elif defined(__aarch64__)
constexpr uint32_t RELATIVE = R_AARCH64_RELATIVE;
#else
#error "NIXL has packages for x86-64 and for 64-bit ARM"
#endif

// A shared library's file, read as far as the loader would.
class Library {
public:
    explicit Library(const std::string &path) : path_(path) {
        std::ifstream file(path, std::ios::binary);
        bytes_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        const auto head = at<Elf64_Ehdr>(0);
        if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64) {
            throw std::runtime_error(path + " is no 64-bit library");
        }
        for (size_t index = 0; index < head.e_shnum; index++) {
            const auto section = at<Elf64_Shdr>(head.e_shoff + index * sizeof(Elf64_Shdr));
            if (section.sh_type == SHT_DYNSYM) {
                const auto names = at<Elf64_Shdr>(head.e_shoff + section.sh_link * sizeof(Elf64_Shdr));
                read_symbols(section, names);
            } else if (section.sh_type == SHT_RELA) {
                relocations_.push_back(section);
            }
        }
    }

    // The symbols that a class's table of virtual functions points to; empty if the library tells of no such class.
    std::vector<std::string> virtual_functions(const std::string &name) const {
        const std::string table = "_ZTV" + std::to_string(name.size()) + name;
        const auto found = std::find_if(symbols_.begin(), symbols_.end(), [&](const Symbol &symbol) { return symbol.name == table; });
        if (found == symbols_.end() || found->size < (TABLE_HEAD + 1) * sizeof(void *)) {
            return {};
        }
        std::vector<std::string> functions(found->size / sizeof(void *) - TABLE_HEAD);
        const uint64_t first = found->value + TABLE_HEAD * sizeof(void *);
        for (const Elf64_Shdr &section : relocations_) {
            for (uint64_t offset = 0; offset + sizeof(Elf64_Rela) <= section.sh_size; offset += sizeof(Elf64_Rela)) {
                const auto entry = at<Elf64_Rela>(section.sh_offset + offset);
                const uint64_t slot = (entry.r_offset - first) / sizeof(void *);
                if (entry.r_offset < first || slot >= functions.size()) {
                    continue;
                }
                functions[slot] = target(entry);
            }
        }
        return functions;
    }

private:
    struct Symbol {
        std::string name;
        uint64_t value;
        uint64_t size;
    };

    template <class T> T at(uint64_t offset) const {
        if (offset > bytes_.size() || sizeof(T) > bytes_.size() - offset) {
            throw std::runtime_error(path_ + " ends too early");
        }
        T value;
        memcpy(&value, bytes_.data() + offset, sizeof(T));
        return value;
    }

    std::string text(uint64_t offset) const {
        const auto end = std::find(bytes_.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(offset, bytes_.size())),
                                   bytes_.end(), '\0');
        return {bytes_.begin() + static_cast<ptrdiff_t>(std::min<uint64_t>(offset, bytes_.size())), end};
    }

    void read_symbols(const Elf64_Shdr &section, const Elf64_Shdr &names) {
        for (uint64_t offset = 0; offset + sizeof(Elf64_Sym) <= section.sh_size; offset += sizeof(Elf64_Sym)) {
            const auto symbol = at<Elf64_Sym>(section.sh_offset + offset);
            symbols_.push_back({text(names.sh_offset + symbol.st_name), symbol.st_value, symbol.st_size});
        }
    }

    std::string target(const Elf64_Rela &entry) const {
        if (ELF64_R_TYPE(entry.r_info) != RELATIVE) {
            const size_t index = ELF64_R_SYM(entry.r_info);
            return index < symbols_.size() ? symbols_[index].name : std::string();
        }
        const auto value = static_cast<uint64_t>(entry.r_addend);
        const auto found = std::find_if(symbols_.begin(), symbols_.end(),
                                        [&](const Symbol &symbol) { return symbol.value == value && symbol.size > 0; });
        return found == symbols_.end() ? std::string() : found->name;
    }

    std::string path_;
    std::vector<char> bytes_;
    std::vector<Symbol> symbols_;
    std::vector<Elf64_Shdr> relocations_;
};

// A member function's symbol without "_ZN", "K" for const, and the name of its class.
std::string without_class(const std::string &symbol) {
    size_t place = symbol.compare(0, 4, "_ZNK") == 0 ? 4 : symbol.compare(0, 3, "_ZN") == 0 ? 3 : symbol.size();
    size_t length = 0;
    while (place < symbol.size() && isdigit(static_cast<unsigned char>(symbol[place]))) {
        length = length * 10 + static_cast<size_t>(symbol[place++] - '0');
    }
    return place + length < symbol.size() ? symbol.substr(place + length) : std::string();
}

std::string folder_of(const std::string &path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash);
}

// Where NIXL's own backends may be: beside this one, and where its library looks by default.
std::vector<std::string> folders() {
    std::vector<std::string> found;
    Dl_info own = {};
    if (dladdr(reinterpret_cast<const void *>(&difference_from_nixl), &own) != 0 && own.dli_fname != nullptr) {
        found.push_back(folder_of(own.dli_fname));
    }
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *list) {
            const std::string path = info->dlpi_name;
            if (path.find("/libnixl.so") != std::string::npos || path.find("/libnixl-") != std::string::npos) {
                static_cast<std::vector<std::string> *>(list)->push_back(folder_of(path) + "/plugins");
            }
            return 0;
        },
        &found);
    return found;
}

std::string compare(const std::string &path, const Known &known, const std::vector<std::string> &functions) {
    const std::string where = path + ", class " + known.engine + ": ";
    for (size_t slot = 0; slot < SLOT_COUNT; slot++) {
        const std::string function = slot < functions.size() ? without_class(functions[slot]) : std::string();
        if (function.compare(0, strlen(SLOTS[slot]), SLOTS[slot]) != 0) {
            return where + "its virtual function " + std::to_string(slot) + " is " +
                   (function.empty() ? "not there" : function) + ", expected is " + SLOTS[slot];
        }
    }
    for (size_t slot = SLOT_COUNT; slot < functions.size(); slot++) {
        // The base class has another function, unless the backend has added one.
        if (!known.adds || functions[slot].find("17nixlBackendEngine") != std::string::npos) {
            return where + "it has " + std::to_string(functions.size()) + " virtual functions, expected are " +
                   std::to_string(SLOT_COUNT);
        }
    }
    return "";
}

} // namespace

std::string difference_from_nixl() {
    for (const std::string &folder : folders()) {
        for (const Known &known : KNOWN) {
            const std::string path = folder + "/" + known.file;
            if (!std::ifstream(path).good()) {
                continue;
            }
            const std::vector<std::string> functions = Library(path).virtual_functions(known.engine);
            if (functions.empty()) {
                continue;
            }
            return compare(path, known, functions);
        }
    }
    log(Level::Warn, "none of NIXL's own backends is where it could be compared with: built for NIXL 1.3 to 1.5");
    return "";
}

} // namespace polyrail_nixl
