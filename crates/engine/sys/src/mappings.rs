//! Protection of this process's memory as the kernel reports it: which parts may be read and written.

use std::fs::File;
use std::io::{self, Read};
use std::mem::size_of;
use std::os::fd::AsRawFd;

/// First byte of a range that does not allow the requested access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Address of the byte.
    pub at: usize,
    /// Protection of its mapping. `None` if the address is not mapped.
    pub protection: Option<Protection>,
}

/// Access that a mapping allows, or that a range needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Reading.
    pub read: bool,
    /// Writing.
    pub write: bool,
}

impl Protection {
    fn allows(self, needs: Self) -> bool {
        (self.read || !needs.read) && (self.write || !needs.write)
    }
}

/// Finds the first byte of `start..start + len` whose mapping does not allow `needs`. Makes one query per mapping,
/// however large, and touches no page.
///
/// # Errors
/// The kernel does not report mappings: `/proc` is hidden.
pub fn first_denied(start: usize, len: u64, needs: Protection) -> io::Result<Option<Denied>> {
    let end = (start as u64).saturating_add(len);
    let mut mappings = Mappings::open()?;
    let mut at = start as u64;
    while at < end {
        let denied = |protection| Some(Denied { at: at as usize, protection });
        match mappings.covering(at)? {
            None => return Ok(denied(None)),
            Some(mapping) if !mapping.protection.allows(needs) => {
                return Ok(denied(Some(mapping.protection)));
            }
            Some(mapping) => at = mapping.end,
        }
    }
    Ok(None)
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    protection: Protection,
}

/// Reader of `/proc/self/maps`.
enum Mappings {
    /// The kernel looks mappings up (Linux 6.11 and later).
    Asked(File),
    /// List of all mappings, in order.
    Listed(Vec<Mapping>),
}

impl Mappings {
    fn open() -> io::Result<Self> {
        let file = File::open("/proc/self/maps")?;
        match ask(&file, 0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Self::list(file),
            _ => Ok(Self::Asked(file)),
        }
    }

    fn list(mut file: File) -> io::Result<Self> {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        if text.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "/proc/self/maps is empty"));
        }
        Ok(Self::Listed(text.lines().filter_map(line).collect()))
    }

    /// Mapping that contains an address.
    fn covering(&mut self, at: u64) -> io::Result<Option<Mapping>> {
        match self {
            Self::Asked(file) => match ask(file, at) {
                Ok(mapping) => Ok(Some(mapping)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            },
            Self::Listed(all) => {
                let next = all.partition_point(|mapping| mapping.end <= at);
                Ok(all.get(next).copied().filter(|mapping| mapping.start <= at))
            }
        }
    }
}

/// Parses a line such as `7f0000000000-7f0000001000 rw-p 00000000 00:00 0 name`.
fn line(text: &str) -> Option<Mapping> {
    let mut words = text.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let allowed = words.next()?;
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        protection: Protection { read: allowed.contains('r'), write: allowed.contains('w') },
    })
}

/// `struct procmap_query` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `PROCMAP_QUERY`: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = (3 << 30) | ((size_of::<Query>() as u64) << 16) | (0x66 << 8) | 17;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// Asks the kernel for the mapping that contains an address. Fails with `NotFound` if there is none.
fn ask(file: &File, at: u64) -> io::Result<Mapping> {
    let mut query = Query { size: size_of::<Query>() as u64, query_addr: at, ..Query::default() };
    // SAFETY: the kernel reads and writes `size` bytes of the query, which lives through the call. As the sizes for
    // names are 0, it writes nowhere else.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let (read, write) = (query.vma_flags & READABLE != 0, query.vma_flags & WRITABLE != 0);
    let protection = Protection { read, write };
    Ok(Mapping { start: query.vma_start, end: query.vma_end, protection })
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    use super::*;
    use crate::memory::page_bytes;

    const WRITE: Protection = Protection { read: false, write: true };
    const READ: Protection = Protection { read: true, write: false };

    /// Pages of which the second is read-only and the fourth has no access.
    fn patched() -> (usize, usize) {
        let page = page_bytes();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; the changes are within it.
        let base = unsafe {
            let base =
                mmap_anonymous(std::ptr::null_mut(), 8 * page, protection, MapFlags::PRIVATE);
            let base = base.unwrap() as usize;
            mprotect((base + page) as _, page, MprotectFlags::READ).unwrap();
            mprotect((base + 3 * page) as _, page, MprotectFlags::empty()).unwrap();
            base
        };
        (base, page)
    }

    #[test]
    fn the_first_page_that_lacks_an_access_is_found_by_the_kernel_and_in_the_list() {
        let (base, page) = patched();
        let only_read = Some(Protection { read: true, write: false });
        let none = Some(Protection { read: false, write: false });
        let list = || Mappings::list(File::open("/proc/self/maps").unwrap()).unwrap();
        for (from, pages, needs, found) in [
            (0, 1, WRITE, None),
            (0, 3, WRITE, Some((1, only_read))),
            (0, 3, READ, None),
            (2, 3, READ, Some((3, none))),
            (4, 4, WRITE, None),
        ] {
            let (start, len) = (base + from * page, (pages * page) as u64);
            let denied = first_denied(start, len, needs).unwrap();
            let found = found.map(|(at, protection)| Denied { at: base + at * page, protection });
            assert_eq!(denied, found, "{from}+{pages}");
            let first = list().covering(start as u64).unwrap().unwrap();
            let asked = Mappings::open().unwrap().covering(start as u64).unwrap().unwrap();
            assert_eq!((first.protection, first.end), (asked.protection, asked.end));
        }
        // The kernel maps nothing at such a low address.
        assert!(list().covering(16).unwrap().is_none());
        let missing = Denied { at: 16, protection: None };
        assert_eq!(first_denied(16, 8, READ).unwrap(), Some(missing));
        assert_eq!(first_denied(base, 0, WRITE).unwrap(), None);
        assert_eq!(first_denied(base + page - 1, 1, WRITE).unwrap(), None);
        assert_eq!(first_denied(base + page - 1, 2, WRITE).unwrap().unwrap().at, base + page);
    }

    #[test]
    fn lines_of_the_list_are_read_with_and_without_a_name() {
        let mapping = line("7f00-8000 r-xp 00000000 00:00 0").unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f00, 0x8000));
        assert_eq!(mapping.protection, READ);
        assert!(line("a-b -w-s 0 0 0 /a file").unwrap().protection.allows(WRITE));
        assert!(line("").is_none() && line("zz-b rw-p").is_none());
    }
}
