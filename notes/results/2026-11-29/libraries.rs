//! Seals, opens, copies and sums records of several sizes by several libraries: GB of one CPU second.
//! `Cargo.toml`: ring = "0.17", aws-lc-rs = "1.19", aws-lc-sys = "0.47", aes-gcm = "0.11", graviola = "0.4", crc-fast = "1.10", libc = "0.2".

use aes_gcm::aead::{AeadInOut, KeyInit};
use std::hint::black_box;

fn cpu() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

struct Way {
    name: &'static str,
    f: Box<dyn FnMut(&mut [u8], usize)>,
}

fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(9, |a| a.parse().unwrap());
    let key = [7u8; 16];
    let mut n: u64 = 0;
    let mut nonce = move || {
        n += 1;
        let mut b = [3u8; 12];
        b[..8].copy_from_slice(&n.to_le_bytes());
        b
    };
    let aad = [9u8; 8];
    // buffers: out has room for tag; source 256 MiB
    let big: Vec<u8> = (0..256usize << 20).map(|i| (i * 31 >> 3) as u8).collect();
    let big: &'static [u8] = big.leak();
    let dest: &'static mut [u8] = vec![1u8; 256 << 20].leak();
    let dest_ptr = dest.as_mut_ptr() as usize;
    let mut at = 0usize;
    let mut next = move |len: usize| {
        if at + len > big.len() {
            at = 0;
        }
        let r = at;
        at += len;
        r
    };

    for size in [64usize, 16usize << 10, 64 << 10, 80 << 10, 512 << 10] {
        let mut ways: Vec<Way> = Vec::new();
        {
            use ring::aead::*;
            let k = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
            let mut nonce = nonce.clone();
            ways.push(Way {
                name: "ring seal",
                f: Box::new(move |b, len| {
                    let t = k
                        .seal_in_place_separate_tag(
                            Nonce::assume_unique_for_key(nonce()),
                            Aad::from(aad),
                            &mut b[..len],
                        )
                        .unwrap();
                    black_box(t.as_ref()[0]);
                }),
            });
            let k = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
                    ways.push(Way {
                name: "ring seal and open",
                f: Box::new(move |b, len| {
                    let t = k
                        .seal_in_place_separate_tag(
                            Nonce::assume_unique_for_key([1; 12]),
                            Aad::from(aad),
                            &mut b[..len],
                        )
                        .unwrap();
                    b[len..len + 16].copy_from_slice(t.as_ref());
                    k.open_in_place(
                        Nonce::assume_unique_for_key([1; 12]),
                        Aad::from(aad),
                        &mut b[..len + 16],
                    )
                    .unwrap();
                }),
            });
        }
        {
            use aws_lc_rs::aead::*;
            let k = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
            let mut nonce = nonce.clone();
            ways.push(Way {
                name: "awslc seal",
                f: Box::new(move |b, len| {
                    let t = k
                        .seal_in_place_separate_tag(
                            Nonce::assume_unique_for_key(nonce()),
                            Aad::from(aad),
                            &mut b[..len],
                        )
                        .unwrap();
                    black_box(t.as_ref()[0]);
                }),
            });
            let k = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
            ways.push(Way {
                name: "awslc seal and open",
                f: Box::new(move |b, len| {
                    let t = k
                        .seal_in_place_separate_tag(
                            Nonce::assume_unique_for_key([1; 12]),
                            Aad::from(aad),
                            &mut b[..len],
                        )
                        .unwrap();
                    b[len..len + 16].copy_from_slice(t.as_ref());
                    k.open_in_place(
                        Nonce::assume_unique_for_key([1; 12]),
                        Aad::from(aad),
                        &mut b[..len + 16],
                    )
                    .unwrap();
                }),
            });
            let k = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
            let mut next = next.clone();
            ways.push(Way {
                name: "awslc seal, open to 256M",
                f: Box::new(move |b, len| {
                    let t = k
                        .seal_in_place_separate_tag(
                            Nonce::assume_unique_for_key([1; 12]),
                            Aad::from(aad),
                            &mut b[..len],
                        )
                        .unwrap();
                    b[len..len + 16].copy_from_slice(t.as_ref());
                    let p = next(len);
                    let d = unsafe { std::slice::from_raw_parts_mut((dest_ptr + p) as *mut u8, len) };
                    let (c, t) = b[..len + 16].split_at(len);
                    let r = k.open_separate_gather(
                        Nonce::assume_unique_for_key([1; 12]),
                        Aad::from(aad),
                        c,
                        t,
                        d,
                    );
                    r.unwrap();
                }),
            });
        }
        {
            let k = aes_gcm::Aes128Gcm::new(&key.into());
            let mut nonce = nonce.clone();
            ways.push(Way {
                name: "aes-gcm seal",
                f: Box::new(move |b, len| {
                    let t = k
                        .encrypt_inout_detached(&nonce().into(), &aad, (&mut b[..len]).into())
                        .unwrap();
                    black_box(t[0]);
                }),
            });
            let k = aes_gcm::Aes128Gcm::new(&key.into());
            ways.push(Way {
                name: "aes-gcm seal and open",
                f: Box::new(move |b, len| {
                    let t = k
                        .encrypt_inout_detached(&[1; 12].into(), &aad, (&mut b[..len]).into())
                        .unwrap();
                    k.decrypt_inout_detached(&[1; 12].into(), &aad, (&mut b[..len]).into(), &t)
                        .unwrap();
                }),
            });
            let k = aes_gcm::Aes128Gcm::new(&key.into());
            let mut next = next.clone();
            ways.push(Way {
                name: "aes-gcm seal, open to 256M",
                f: Box::new(move |b, len| {
                    let t = k
                        .encrypt_inout_detached(&[1; 12].into(), &aad, (&mut b[..len]).into())
                        .unwrap();
                    let p = next(len);
                    let d = unsafe { std::slice::from_raw_parts_mut((dest_ptr + p) as *mut u8, len) };
                    k.decrypt_inout_detached(
                        &[1; 12].into(),
                        &aad,
                        aes_gcm::aead::inout::InOutBuf::new(&b[..len], d).unwrap(),
                        &t,
                    )
                    .unwrap();
                }),
            });
        }
        {
            let k = graviola::aead::AesGcm::new(&key);
            let mut nonce = nonce.clone();
            ways.push(Way {
                name: "graviola seal",
                f: Box::new(move |b, len| {
                    let mut t = [0; 16];
                    k.encrypt(&nonce(), &aad, &mut b[..len], &mut t);
                    black_box(t[0]);
                }),
            });
            let k = graviola::aead::AesGcm::new(&key);
            ways.push(Way {
                name: "graviola seal and open",
                f: Box::new(move |b, len| {
                    let mut t = [0; 16];
                    k.encrypt(&[1; 12], &aad, &mut b[..len], &mut t);
                    k.decrypt(&[1; 12], &aad, &mut b[..len], &t).unwrap();
                }),
            });
        }
        {
            let mut next = next.clone();
            ways.push(Way {
                name: "copy 256M to hot",
                f: Box::new(move |b, len| {
                    let p = next(len);
                    b[..len].copy_from_slice(&big[p..p + len]);
                }),
            });
            let mut next = next.clone();
            ways.push(Way {
                name: "copy hot to 256M",
                f: Box::new(move |b, len| {
                    let p = next(len);
                    unsafe { std::ptr::copy_nonoverlapping(b.as_ptr(), (dest_ptr + p) as *mut u8, len) };
                }),
            });
            let mut next = next.clone();
            ways.push(Way {
                name: "copy 256M to 256M",
                f: Box::new(move |_, len| {
                    let p = next(len);
                    unsafe {
                        std::ptr::copy_nonoverlapping(big[p..].as_ptr(), (dest_ptr + p) as *mut u8, len)
                    };
                }),
            });
            let mut spare = vec![0u8; len_of(size)];
            ways.push(Way {
                name: "copy hot to hot",
                f: Box::new(move |b, len| {
                    spare[..len].copy_from_slice(&b[..len]);
                    black_box(spare[0]);
                }),
            });
        }
        ways.push(Way {
            name: "crc-fast hot",
            f: Box::new(move |b, len| {
                black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &b[..len]));
            }),
        });
        {
            let mut next = next.clone();
            ways.push(Way {
                name: "crc-fast 256M",
                f: Box::new(move |_, len| {
                    let p = next(len);
                    black_box(crc_fast::checksum(
                        crc_fast::CrcAlgorithm::Crc32Iscsi,
                        &big[p..p + len],
                    ));
                }),
            });
            let mut next = next.clone();
            ways.push(Way {
                name: "crc 256M by 16K copies",
                f: Box::new(move |_, len| {
                    let mut p = next(len);
                    let mut block = [0u8; 16 << 10];
                    let mut left = len;
                    let mut crc = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
                    while left > 0 {
                        let t = left.min(16 << 10);
                        unsafe { std::ptr::copy_nonoverlapping(big[p..].as_ptr(), block.as_mut_ptr(), t) };
                        crc.update(&block[..t]);
                        p += t;
                        left -= t;
                    }
                    black_box(crc.finalize());
                }),
            });
            let mut next = next.clone();
            ways.push(Way {
                name: "crc 256M by 4K copies",
                f: Box::new(move |_, len| {
                    let mut p = next(len);
                    let mut block = [0u8; 4 << 10];
                    let mut left = len;
                    let mut crc = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
                    while left > 0 {
                        let t = left.min(4 << 10);
                        unsafe { std::ptr::copy_nonoverlapping(big[p..].as_ptr(), block.as_mut_ptr(), t) };
                        crc.update(&block[..t]);
                        p += t;
                        left -= t;
                    }
                    black_box(crc.finalize());
                }),
            });
        }
        let mut buf = vec![5u8; len_of(size)];
        let mut rates = vec![Vec::new(); ways.len()];
        let per = ((24usize << 20) / size).min(60000);
        for r in 0..=rounds {
            for (i, w) in ways.iter_mut().enumerate() {
                let t0 = cpu();
                for _ in 0..per {
                    (w.f)(&mut buf, size);
                }
                let t = cpu() - t0;
                if r > 0 {
                    rates[i].push((per * size) as f64 / t / 1e9);
                }
            }
        }
        println!(
            "record {} B: GB per CPU second, median (min to max) of {rounds}",
            size
        );
        for (w, r) in ways.iter().zip(&mut rates) {
            r.sort_by(f64::total_cmp);
            println!(
                "  {:26} {:6.2} ({:.2} to {:.2})",
                w.name,
                r[r.len() / 2],
                r[0],
                r[r.len() - 1]
            );
        }
    }
}
fn len_of(size: usize) -> usize {
    size + 4096
}
