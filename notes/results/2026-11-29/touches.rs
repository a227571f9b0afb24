//! Each pass over a byte that payload protection adds, from and to 256 MiB (cold) or one record (hot): CPU seconds for a GB.
//! `Cargo.toml`: ring = "0.17", aws-lc-rs = "1.19", aws-lc-sys = "0.47", aes-gcm = "0.11", graviola = "0.4", crc-fast = "1.10", libc = "0.2".

use aws_lc_sys::*;
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
fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(9, |a| a.parse().unwrap());
    let src: &'static mut [u8] = vec![3u8; N].leak();
    for (i, b) in src.iter_mut().enumerate() {
        *b = (i * 31 >> 3) as u8;
    }
    let dst: &'static mut [u8] = vec![1u8; N].leak();
    let (src, dst) = (src.as_mut_ptr(), dst.as_mut_ptr());
    let ctx = unsafe {
        let c = EVP_AEAD_CTX_new(EVP_aead_aes_128_gcm(), [7u8; 16].as_ptr(), 16, 16);
        assert!(!c.is_null());
        c
    };
    let seal = |out: *mut u8, from: *const u8, len: usize| unsafe {
        let mut n = 0usize;
        let mut tag = [0u8; 16];
        assert_eq!(
            1,
            EVP_AEAD_CTX_seal_scatter(
                ctx,
                out,
                tag.as_mut_ptr(),
                &mut n,
                16,
                [1u8; 12].as_ptr(),
                12,
                from,
                len,
                std::ptr::null(),
                0,
                [9u8; 8].as_ptr(),
                8
            )
        );
        tag
    };
    let open = |out: *mut u8, from: *const u8, len: usize, tag: &[u8; 16]| unsafe {
        assert_eq!(
            1,
            EVP_AEAD_CTX_open_gather(
                ctx,
                out,
                [1u8; 12].as_ptr(),
                12,
                from,
                len,
                tag.as_ptr(),
                16,
                [9u8; 8].as_ptr(),
                8
            )
        );
    };
    use ring::aead::*;
    let rk = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &[7; 16]).unwrap());
    for len in [64usize << 10, 128 << 10] {
        let mut hot = vec![5u8; len + 64];
        let mut master = vec![6u8; len + 64];
        let mtag = seal(master.as_mut_ptr(), hot.as_ptr(), len);
        let h = hot.as_mut_ptr();
        let m = master.as_ptr();
        let big = 512usize << 10;
        let mut at = 0usize;
        let mut next = |l: usize| {
            if at + l > N {
                at = 0
            }
            let r = at;
            at += l;
            r
        };
        let cp = |f: *const u8, t: *mut u8, l: usize| unsafe { std::ptr::copy_nonoverlapping(f, t, l) };
        let crc = |p: *const u8, l: usize| {
            black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, unsafe {
                std::slice::from_raw_parts(p, l)
            }));
        };
        let crcb = |p: *const u8, l: usize, b: usize| {
            let mut block = [0u8; 16 << 10];
            let mut d = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
            let mut o = 0;
            while o < l {
                let t = b.min(l - o);
                cp(unsafe { p.add(o) }, block.as_mut_ptr(), t);
                d.update(&block[..t]);
                o += t
            }
            black_box(d.finalize());
        };
        let names = [
            "cold->hot copy",
            "cold->hot copy, awslc in place",
            "cold->hot awslc fused",
            "cold->hot copy, ring in place",
            "hot->hot awslc open",
            "hot->hot awslc open, copy to cold",
            "hot->cold awslc open fused",
            "hot->cold copy",
            "recopy 512K hot->cold",
            "recopy, crc direct",
            "recopy, crc 16K blocks",
            "recopy, crc 4K blocks",
            "cold crc direct",
            "cold crc 16K",
            "cold crc 4K",
            "cold crc 16K then copy hot->hot",
            "cold->hot copy x2",
        ];
        let mut rates = vec![Vec::new(); names.len()];
        let mut hot2 = vec![5u8; big];
        let hb = hot2.as_mut_ptr();
        for r in 0..=rounds {
            for i in 0..names.len() {
                let per = (24usize << 20) / len;
                let t0 = cpu();
                let mut done = 0usize;
                for _ in 0..per {
                    let mut l = len;
                    match i {
                        0 => {
                            let p = next(len);
                            cp(unsafe { src.add(p) }, h, len)
                        }
                        1 => {
                            let p = next(len);
                            cp(unsafe { src.add(p) }, h, len);
                            black_box(seal(h, h, len));
                        }
                        2 => {
                            let p = next(len);
                            black_box(seal(h, unsafe { src.add(p) }, len));
                        }
                        3 => {
                            let p = next(len);
                            cp(unsafe { src.add(p) }, h, len);
                            let b = unsafe { std::slice::from_raw_parts_mut(h, len) };
                            black_box(
                                rk.seal_in_place_separate_tag(
                                    Nonce::assume_unique_for_key([1; 12]),
                                    Aad::from([9u8; 8]),
                                    b,
                                )
                                .unwrap()
                                .as_ref()[0],
                            );
                        }
                        4 => open(h, m, len, &mtag),
                        5 => {
                            open(h, m, len, &mtag);
                            let p = next(len);
                            cp(h, unsafe { dst.add(p) }, len)
                        }
                        6 => {
                            let p = next(len);
                            open(unsafe { dst.add(p) }, m, len, &mtag)
                        }
                        7 => {
                            let p = next(len);
                            cp(h, unsafe { dst.add(p) }, len)
                        }
                        8..=11 => {
                            l = big;
                            let p = next(big);
                            let d = unsafe { dst.add(p) };
                            cp(hb, d, big);
                            match i {
                                9 => crc(d, big),
                                10 => crcb(d, big, 16 << 10),
                                11 => crcb(d, big, 4 << 10),
                                _ => {}
                            }
                        }
                        12 => {
                            l = big;
                            let p = next(big);
                            crc(unsafe { src.add(p) }, big)
                        }
                        13 => {
                            l = big;
                            let p = next(big);
                            crcb(unsafe { src.add(p) }, big, 16 << 10)
                        }
                        14 => {
                            l = big;
                            let p = next(big);
                            crcb(unsafe { src.add(p) }, big, 4 << 10)
                        }
                        15 => {
                            l = big;
                            let p = next(big);
                            crcb(unsafe { src.add(p) }, big, 16 << 10);
                            cp(unsafe { src.add(p) }, hb, big)
                        }
                        _ => {
                            l = big;
                            let p = next(big);
                            cp(unsafe { src.add(p) }, hb, big);
                            cp(unsafe { src.add(p) }, hb, big);
                        }
                    }
                    done += l;
                    if done >= 32 << 20 {
                        break;
                    }
                }
                if r > 0 {
                    rates[i].push((cpu() - t0) / done as f64 * 1e9);
                }
            }
        }
        println!(
            "record {} KiB: CPU seconds per GB, median (min to max) of {rounds}",
            len >> 10
        );
        for (n, v) in names.iter().zip(&mut rates) {
            v.sort_by(f64::total_cmp);
            println!(
                "  {n:34} {:.3} ({:.3} to {:.3})",
                v[v.len() / 2],
                v[0],
                v[v.len() - 1]
            );
        }
    }
}
