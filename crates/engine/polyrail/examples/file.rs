//! A file of any size, also one that is larger than memory, from one machine to another: in blocks, each with a checksum.
//! The copy is `COPY.part` until it is whole, and `COPY.part.blocks` lists the blocks in place. If the reader dies, its line goes
//! on where the copy ended. If the server dies, start it again: the line that it prints then goes on with the same COPY.
//!
//! `file serve PATH` where the file is. It prints the line to type on the other machine: `file get ADDRESS INVITATION COPY`.

use std::collections::{BTreeSet, VecDeque};
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use polyrail::{Access, Config, Engine, Invitation, Memory, Peer, Region, Registrable, Transfer};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str =
    "usage: file serve PATH, and then the line that it prints: file get ADDRESS INVITATION COPY";

const BLOCK: u64 = 16 << 20;
/// Blocks that are asked for and not in place.
const AHEAD: usize = 8;
/// A list of blocks is not larger.
const LIST_BYTES: u64 = 64 << 20;
/// The block of an answer that has a reason instead.
const REFUSED: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    polyrail::exit(run())
}

fn run() -> Result<()> {
    let arguments = std::env::args_os().skip(1).map(|word| word.into_string());
    let arguments: Vec<String> =
        arguments.collect::<std::result::Result<_, _>>().map_err(|_| "an argument is not UTF-8")?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["serve", path] => serve(path),
        ["get", address, invitation, path] => get(address, &invitation.parse()?, path),
        ["--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

/// Every NIC of the machine, unless the environment says otherwise: POLYRAIL_RAILS=eth0,eth1.
fn engine(name: &str) -> Result<Engine> {
    let config = Config::builder().env().build()?;
    Ok(Engine::builder().config(config).name(name).build()?)
}

/// The start and the length of a block.
fn extent(block: u64, size: u64) -> (u64, u64) {
    let begin = block.saturating_mul(BLOCK).min(size);
    (begin, BLOCK.min(size - begin))
}

/// An error of a file, with its name.
fn named(path: &str) -> impl Fn(io::Error) -> Box<dyn Error> + '_ {
    move |error| format!("{}: {error}", path.escape_debug()).into()
}

/// Returns whether a file of this name exists. Anything but a regular file is refused: opening a pipe would wait, and a link
/// would lead to another file.
fn exists(path: &str) -> Result<bool> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        found => found.map_err(named(path))?,
    };
    if !found.is_file() {
        return Err(format!("{} is not a regular file: remove it", path.escape_debug()).into());
    }
    Ok(true)
}

/// Opens the file to be sent.
fn open_source(path: &str) -> Result<File> {
    let found = fs::metadata(path).map_err(named(path))?;
    if !found.is_file() {
        return Err(format!("{} is not a regular file", path.escape_debug()).into());
    }
    let mut file = File::open(path).map_err(named(path))?;
    if found.len() == 0 && file.read(&mut [0]).map_err(named(path))? > 0 {
        return Err(
            format!("{} has bytes, but no size: copy it to a disk", path.escape_debug()).into()
        );
    }
    Ok(file)
}

/// The file's size, and a text that differs between versions of the file: each change sets the time.
fn version(file: &File) -> Result<(u64, String)> {
    let found = file.metadata()?;
    let (size, time, nanoseconds) = (found.len(), found.ctime(), found.ctime_nsec());
    Ok((size, format!("{size} {time}.{nanoseconds:09} {}", found.ino())))
}

fn serve(path: &str) -> Result<()> {
    open_source(path)?;
    let engine = engine("server")?;
    let (address, invitation) = (engine.addresses()[0], engine.invitation());
    println!("on the other machine, type:");
    println!("cargo run --release -p polyrail --example file -- get {address} {invitation} COPY");
    // One after the other; end it by Ctrl-C.
    loop {
        let Some(peer) = engine.accept_peer(PATIENCE) else { continue };
        println!("{} came", peer.name());
        if let Err(error) = answer(&engine, &peer, path) {
            println!("{}: {error}", peer.name());
            let refusal = [&REFUSED.to_le_bytes()[..], error.to_string().as_bytes()].concat();
            // A reader that is gone needs none.
            let _ = engine.notify(&peer, &refusal).map(|sent| sent.join());
        }
    }
}

/// Answers one reader: first with the file's size and version, then with each block that it asks for.
fn answer(engine: &Engine, peer: &Peer, path: &str) -> Result<()> {
    let file = open_source(path)?;
    let (size, version) = version(&file)?;
    engine.notify(peer, &[&size.to_le_bytes()[..], version.as_bytes()].concat())?.join()?;
    let mut registered = VecDeque::new();
    loop {
        let Some(asked) = engine.wait_notification(LOOK) else {
            let Some(why) = peer.lost() else { continue };
            println!("{} is gone: {why}", peer.name());
            return Ok(());
        };
        if asked.peer.instance() != peer.instance() {
            continue;
        }
        let block = u64::from_le_bytes(asked.data.as_slice().try_into()?);
        let (region, answer) = offer(engine, &file, block, (size, &version))?;
        // The reader has what it asked for so many blocks ago.
        if registered.len() == AHEAD {
            registered.pop_front();
        }
        registered.push_back(region);
        engine.notify(peer, &answer)?.join()?;
    }
}

/// A block as a region, and the answer that describes it. It fails if the file was changed meanwhile: a copy has blocks of one
/// version only.
fn offer(
    engine: &Engine,
    file: &File,
    block: u64,
    (size, expected): (u64, &str),
) -> Result<(Region, Vec<u8>)> {
    let (begin, len) = extent(block, size);
    let memory = Memory::map_file(file, begin, len)?;
    let checksum = memory.crc32c(0, 0, len)?;
    if version(file)?.1 != expected {
        return Err("the file was changed: run the line again".into());
    }
    let region = engine.register(memory.with_access(Access::READ))?;
    let mut answer = [&block.to_le_bytes()[..], &checksum.to_le_bytes()].concat();
    answer.extend(region.describe());
    Ok((region, answer))
}

/// A block on its way.
struct Coming {
    block: u64,
    checksum: u32,
    memory: Memory,
    transfer: Transfer,
    _region: Region,
}

/// The copy so far, and the list of its blocks that are in place.
struct Target {
    part: String,
    file: File,
    blocks: String,
    list: File,
    size: u64,
}

impl Target {
    /// Goes on with the copy of the same `version` of the source, and returns the blocks of it that are right.
    fn open(path: &str, size: u64, version: &str) -> Result<(Self, BTreeSet<u64>)> {
        let (part, blocks) = (format!("{path}.part"), format!("{path}.part.blocks"));
        exists(&part)?;
        let known = read_list(&blocks)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&part).map_err(named(&part))?;
        file.set_len(size).map_err(named(&part))?;
        let mut done = BTreeSet::new();
        if known.lines().next() != Some(version) {
            let mut list = File::create(&blocks).map_err(named(&blocks))?;
            writeln!(list, "{version}").map_err(named(&blocks))?;
            return Ok((Self { part, file, blocks, list, size }, done));
        }
        for line in known.lines().skip(1) {
            let Some((Ok(block), Ok(checksum))) =
                line.split_once(' ').map(|(block, sum)| (block.parse::<u64>(), sum.parse::<u32>()))
            else {
                continue;
            };
            let (begin, len) = extent(block, size);
            let is_new = len > 0 && !done.contains(&block);
            // Bytes that were on their way to the disk when a machine failed may be lost.
            if is_new && Memory::map_file(&file, begin, len)?.crc32c(0, 0, len)? == checksum {
                done.insert(block);
            }
        }
        let mut list = OpenOptions::new().append(true).open(&blocks).map_err(named(&blocks))?;
        // The last line may have been cut off.
        writeln!(list).map_err(named(&blocks))?;
        Ok((Self { part, file, blocks, list, size }, done))
    }

    fn begin(&self, engine: &Engine, peer: &Peer, answer: &[u8]) -> Result<Coming> {
        let (block, rest) = answer.split_first_chunk().ok_or("the answer is short")?;
        let block = u64::from_le_bytes(*block);
        let (checksum, description) = rest.split_first_chunk().ok_or("the answer is short")?;
        let checksum = u32::from_le_bytes(*checksum);
        let (begin, len) = extent(block, self.size);
        let memory = Memory::map_file(&self.file, begin, len).map_err(named(&self.part))?;
        memory.populate(0, len).map_err(named(&self.part))?;
        let region = engine.register(memory.clone().with_access(Access::LOCAL))?;
        let remote = engine.import(description)?;
        let transfer = engine.read(peer, &region.all(), &remote.all())?;
        Ok(Coming { block, checksum, memory, transfer, _region: region })
    }

    fn end(&mut self, coming: &Coming) -> Result<()> {
        let Coming { block, checksum, memory, transfer, .. } = coming;
        transfer.join()?;
        if memory.crc32c(0, 0, memory.len())? != *checksum {
            return Err(format!("block {block} has another checksum: the file was changed").into());
        }
        writeln!(self.list, "{block} {checksum}").map_err(named(&self.blocks))
    }

    /// Gives the copy, which is whole, its name.
    fn finish(&self, path: &str) -> Result<()> {
        self.file.sync_all().map_err(named(&self.part))?;
        let number = |found: fs::Metadata| (found.dev(), found.ino());
        let there = fs::symlink_metadata(&self.part).map_err(named(&self.part))?;
        if number(there) != number(self.file.metadata()?) {
            return Err(format!("{} was replaced by another file", self.part.escape_debug()).into());
        }
        fs::rename(&self.part, path).map_err(named(path))?;
        fs::remove_file(&self.blocks).map_err(named(&self.blocks))
    }
}

/// The lines of a list of blocks; none if there is no list yet.
fn read_list(name: &str) -> Result<String> {
    let mut bytes = Vec::new();
    if exists(name)? {
        let list = File::open(name).map_err(named(name))?;
        list.take(LIST_BYTES + 1).read_to_end(&mut bytes).map_err(named(name))?;
    }
    if bytes.len() as u64 > LIST_BYTES {
        return Err(format!("{} is not a list of blocks: remove it", name.escape_debug()).into());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn get(address: &str, invitation: &Invitation, path: &str) -> Result<()> {
    let engine = engine("reader")?;
    let peer = engine.connect_by(address.parse()?, invitation).join()?;
    let first = next(&engine, &peer)?;
    let (size, version) = first.split_first_chunk().ok_or("the first answer is short")?;
    let (size, version) = (u64::from_le_bytes(*size), String::from_utf8_lossy(version));
    let (mut copy, there) = Target::open(path, size, &version.escape_debug().to_string())?;
    let blocks = size.div_ceil(BLOCK);
    let before = there.len() as u64;
    let mut missing = (0..blocks).filter(|block| !there.contains(block));
    println!("{before} of {blocks} blocks are there");
    let begin = Instant::now();
    let mut done = before;
    if let Err(error) = get_blocks((&engine, &peer), &mut copy, &mut missing, &mut done) {
        let part = copy.part.escape_debug();
        println!("{done} of {blocks} blocks are in {part}; give the same COPY to go on");
        return Err(error);
    }
    let seconds = begin.elapsed().as_secs_f64();
    copy.finish(path)?;
    let rate = (done - before) as f64 * BLOCK as f64 / seconds / 1e9;
    let path = path.escape_debug();
    println!("{path} has {size} bytes, every block is right; at most {rate:.2} GB/s");
    Ok(())
}

/// Keeps so many blocks on their way, and counts those that are in place.
fn get_blocks(
    (engine, peer): (&Engine, &Peer),
    copy: &mut Target,
    missing: &mut impl Iterator<Item = u64>,
    done: &mut u64,
) -> Result<()> {
    let (mut asked, mut coming) = (0, VecDeque::new());
    loop {
        while asked + coming.len() < AHEAD
            && let Some(block) = missing.next()
        {
            engine.notify(peer, &block.to_le_bytes())?.join()?;
            asked += 1;
        }
        // Half of them are with the server, so that it and this end work at the same time.
        if asked > AHEAD / 2 || (asked > 0 && coming.is_empty()) {
            coming.push_back(copy.begin(engine, peer, &next(engine, peer)?)?);
            asked -= 1;
        } else {
            let Some(first) = coming.pop_front() else { return Ok(()) };
            copy.end(&first)?;
            *done += 1;
        }
    }
}

/// The next answer, unless the server is gone or refuses.
fn next(engine: &Engine, peer: &Peer) -> Result<Vec<u8>> {
    loop {
        match engine.wait_notification(LOOK).map(|answer| answer.data) {
            Some(answer) => match answer.strip_prefix(&REFUSED.to_le_bytes()) {
                None => return Ok(answer),
                Some(why) => {
                    let why = String::from_utf8_lossy(why);
                    return Err(
                        format!("the server can't offer a block: {}", why.escape_debug()).into()
                    );
                }
            },
            None if peer.lost().is_some() => {
                // The error of a call says why, and how the program ends.
                engine.notify(peer, &[])?.join()?;
            }
            None => {}
        }
    }
}
