//! One connection over loopback: the receiver reads up to a cap of a 512 KiB chunk in a call and sums it; CPU seconds for a GB of either thread.
//! `Cargo.toml`: crc-fast = "1.10", libc = "0.2".
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
fn cpu() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}
const N: usize = 256 << 20;
const CHUNK: usize = 512 << 10;
fn sum(bytes: &[u8]) {
    let mut block = [0u8; 16 << 10];
    let mut d = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for part in bytes.chunks(16 << 10) {
        block[..part.len()].copy_from_slice(part);
        d.update(&block[..part.len()]);
    }
    black_box(d.finalize());
}
fn main() {
    let rounds: usize = std::env::args().nth(1).map_or(7, |a| a.parse().unwrap());
    let per = 128usize << 20;
    // cap, sender's sum: 0 none, else bytes summed before they are sent
    let ways: [(usize, usize); 9] = [
        (0, 0),
        (CHUNK, CHUNK),
        (256 << 10, CHUNK),
        (128 << 10, CHUNK),
        (64 << 10, CHUNK),
        (128 << 10, 256 << 10),
        (128 << 10, 128 << 10),
        (128 << 10, 64 << 10),
        (128 << 10, 0),
    ];
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut tx = TcpStream::connect(l.local_addr().unwrap()).unwrap();
    let (mut rx, _) = l.accept().unwrap();
    let total = rounds + 1;
    let sender = std::thread::spawn(move || {
        let src: Vec<u8> = (0..N).map(|i| (i * 31 >> 3) as u8).collect();
        let mut at = 0;
        let mut rates = vec![Vec::new(); ways.len()];
        for r in 0..total {
            for (i, (_, before)) in ways.iter().enumerate() {
                let mut ack = [0];
                tx.read_exact(&mut ack).unwrap();
                let t0 = cpu();
                for _ in 0..per / CHUNK {
                    let chunk = &src[at..at + CHUNK];
                    at = (at + CHUNK) % N;
                    if *before == 0 {
                        tx.write_all(chunk).unwrap()
                    } else {
                        for part in chunk.chunks(*before) {
                            sum(part);
                            tx.write_all(part).unwrap();
                        }
                    }
                }
                if r > 0 {
                    rates[i].push((cpu() - t0) / per as f64 * 1e9)
                }
            }
        }
        rates
    });
    let mut dst = vec![1u8; N];
    let mut at = 0;
    let mut rates = vec![Vec::new(); ways.len()];
    for r in 0..total {
        for (i, (cap, _)) in ways.iter().enumerate() {
            rx.write_all(&[1]).unwrap();
            let t0 = cpu();
            for _ in 0..per / CHUNK {
                let chunk = &mut dst[at..at + CHUNK];
                at = (at + CHUNK) % N;
                let mut got = 0;
                while got < CHUNK {
                    let end = if *cap == 0 { CHUNK } else { CHUNK.min(got + cap) };
                    let n = rx.read(&mut chunk[got..end]).unwrap();
                    if *cap > 0 {
                        sum(&chunk[got..got + n]);
                    }
                    got += n;
                }
            }
            if r > 0 {
                rates[i].push((cpu() - t0) / per as f64 * 1e9)
            }
        }
    }
    let sent = sender.join().unwrap();
    println!("CPU seconds for a GB, median (min to max) of {rounds}");
    for (i, (cap, before)) in ways.iter().enumerate() {
        let show = |v: &Vec<f64>| {
            let mut v = v.clone();
            v.sort_by(f64::total_cmp);
            format!("{:.3} ({:.3} to {:.3})", v[v.len() / 2], v[0], v[v.len() - 1])
        };
        let mut both: Vec<f64> = sent[i].iter().zip(&rates[i]).map(|(a, b)| a + b).collect();
        both.sort_by(f64::total_cmp);
        println!(
            "  receive {:4} KiB at most, sum {:4} KiB before sending: sender {}, receiver {}, both {}",
            cap >> 10,
            before >> 10,
            show(&sent[i]),
            show(&rates[i]),
            show(&both)
        );
    }
}
