/* What the system knows about this process and about a library file. */
#include <arpa/inet.h>
#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases.h"

enum { LISTENS = 0x0a };

static bool is_mine(unsigned long inode);
static bool is_plugin_symbol(const char *name);

int listening_ports(struct sockaddr_storage *to, int most) {
    int count = 0;
    for (int v6 = 0; v6 < 2; v6++) {
        FILE *file = fopen(v6 ? "/proc/net/tcp6" : "/proc/net/tcp", "re");
        char line[512];
        while (file && count < most && fgets(line, sizeof line, file)) {
            char address[40];
            unsigned port, state;
            unsigned long inode;
            if (sscanf(line, " %*d: %36[0-9A-F]:%x %*[0-9A-F]:%*x %x %*x:%*x %*x:%*x %*x %*d %*d %lu", address, &port,
                       &state, &inode) != 4 ||
                state != LISTENS || !is_mine(inode)) {
                continue;
            }
            memset(&to[count], 0, sizeof to[count]);
            if (v6) {
                struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&to[count++];
                in6->sin6_family = AF_INET6;
                in6->sin6_port = htons((uint16_t)port);
                for (int word = 0; word < 4; word++) {
                    unsigned value;
                    sscanf(address + word * 8, "%8x", &value);
                    memcpy((char *)&in6->sin6_addr + word * 4, &value, 4);
                }
                if (IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr)) {
                    in6->sin6_addr = in6addr_loopback;
                }
            } else {
                struct sockaddr_in *in = (struct sockaddr_in *)&to[count++];
                unsigned value;
                sscanf(address, "%x", &value);
                in->sin_family = AF_INET;
                in->sin_port = htons((uint16_t)port);
                in->sin_addr.s_addr = value ? value : htonl(INADDR_LOOPBACK);
            }
        }
        if (file) {
            fclose(file);
        }
    }
    return count;
}

int stray_symbols(const char *library, char names[][64], int most, int *plugin_symbols) {
    struct stat stat;
    int fd = open(library, O_RDONLY | O_CLOEXEC), strays = 0;
    if (fd < 0 || fstat(fd, &stat) || (size_t)stat.st_size < sizeof(Elf64_Ehdr)) {
        return -1;
    }
    const char *file = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (file == MAP_FAILED || memcmp(file, ELFMAG, SELFMAG) || file[EI_CLASS] != ELFCLASS64) {
        return -1;
    }
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)file;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(file + head->e_shoff);
    *plugin_symbols = 0;
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_DYNSYM) {
            continue;
        }
        const Elf64_Sym *symbols = (const Elf64_Sym *)(file + sections[i].sh_offset);
        const char *strings = file + sections[sections[i].sh_link].sh_offset;
        for (size_t n = 1; n < sections[i].sh_size / sizeof *symbols; n++) {
            const char *name = strings + symbols[n].st_name;
            if (symbols[n].st_shndx == SHN_UNDEF || symbols[n].st_shndx == SHN_ABS) {
                continue;
            }
            if (strncmp(name, "__odr_asan.", 11) == 0) {
                /* The address sanitizer's own. */
                continue;
            }
            if (is_plugin_symbol(name)) {
                ++*plugin_symbols;
            } else {
                if (strays < most) {
                    snprintf(names[strays], 64, "%s", name);
                }
                strays++;
            }
        }
    }
    munmap((void *)file, (size_t)stat.st_size);
    return strays;
}

static bool is_mine(unsigned long inode) {
    DIR *dir = opendir("/proc/self/fd");
    bool found = false;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        char target[64] = "";
        unsigned long number;
        ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
        found = length > 0 && sscanf(target, "socket:[%lu]", &number) == 1 && number == inode;
    }
    if (dir) {
        closedir(dir);
    }
    return found;
}

/* ncclNetPlugin_v12 and the like; kinds of plugins that a net library may hold besides. */
static bool is_plugin_symbol(const char *name) {
    static const char *const kinds[] = {"ncclNetPlugin_v", "ncclTunerPlugin_v", "ncclProfiler_v", "ncclCollNetPlugin_v"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i]);
        if (!strncmp(name, kinds[i], length) && strspn(name + length, "0123456789") == strlen(name + length)) {
            return true;
        }
    }
    return false;
}
