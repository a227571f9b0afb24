//! A copy and the cipher (`ring`) by the size of a record, with and without prefetching what comes next: CPU seconds for a GB.
//! `open*` is a seal: it takes as long. `Cargo.toml`: ring = "0.17", libc = "0.2".

use ring::aead::*;
use std::arch::x86_64::*;
use std::hint::black_box;
fn cpu() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}
const N: usize = 256 << 20;

unsafe fn pfw(p: *const u8, len: usize) {
    unsafe {
        let mut i = 0;
        while i < len {
            core::arch::asm!("prefetchw [{}]", in(reg) p.add(i), options(nostack, preserves_flags));
            i += 64;
        }
    }
}
unsafe fn pf(p: *const u8, len: usize) {
    unsafe {
        let mut i = 0;
        while i < len {
            _mm_prefetch::<_MM_HINT_T0>(p.add(i).cast());
            i += 64;
        }
    }
}
fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(9, |a| a.parse().unwrap());
    let src: &'static mut [u8] = vec![3u8; N].leak();
    for (i, b) in src.iter_mut().enumerate() {
        *b = (i * 31 >> 3) as u8;
    }
    let dst: &'static mut [u8] = vec![1u8; N].leak();
    let (src, dst) = (src.as_mut_ptr(), dst.as_mut_ptr());
    let k = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16]).unwrap());
    let seal = |p: *mut u8, l: usize| {
        let b = unsafe { std::slice::from_raw_parts_mut(p, l) };
        black_box(
            k.seal_in_place_separate_tag(Nonce::assume_unique_for_key([1; 12]), Aad::from([9u8; 8]), b)
                .unwrap()
                .as_ref()[0],
        );
    };
    let cp = |f: *const u8, t: *mut u8, l: usize| unsafe { std::ptr::copy_nonoverlapping(f, t, l) };
    let span = 256 << 10;
    let mut hot = vec![5u8; span + 4096];
    let h0 = hot.as_mut_ptr();
    let mut at = 0usize;
    let sizes = [4usize << 10, 8 << 10, 16 << 10, 64 << 10];
    let mut rates = vec![vec![Vec::new(); 4]; sizes.len()];
    for r in 0..=rounds {
        for (gi, &g) in sizes.iter().enumerate() {
            for i in 0..4 {
                let per = (32usize << 20) / g;
                let t0 = cpu();
                for n in 0..per {
                    if at + 2 * g > N {
                        at = 0
                    }
                    let p = at;
                    at += g;
                    let h = unsafe { h0.add(n * g % span) };
                    let (s, d) = unsafe { (src.add(p), dst.add(p)) };
                    unsafe {
                        match i {
                            0 => {
                                cp(s, h, g);
                                seal(h, g)
                            }
                            1 => {
                                cp(s, h, g);
                                pf(s.add(g), g);
                                seal(h, g)
                            }
                            2 => {
                                seal(h, g);
                                cp(h, d, g)
                            }
                            _ => {
                                pfw(d, g);
                                seal(h, g);
                                cp(h, d, g)
                            }
                        }
                    }
                }
                if r > 0 {
                    rates[gi][i].push((cpu() - t0) / (per * g) as f64 * 1e9);
                }
            }
        }
    }
    println!("CPU seconds for a GB, median (min to max) of {rounds}");
    for (gi, g) in sizes.iter().enumerate() {
        for (i, n) in [
            "copy in, seal",
            "copy in, prefetch next, seal",
            "open*, copy out",
            "prefetchw, open*, copy out",
        ]
        .iter()
        .enumerate()
        {
            let v = &mut rates[gi][i];
            v.sort_by(f64::total_cmp);
            println!(
                "  {:2} KiB {n:30} {:.3} ({:.3} to {:.3})",
                g >> 10,
                v[v.len() / 2],
                v[0],
                v[v.len() - 1]
            );
        }
    }
}
