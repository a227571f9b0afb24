//! A warp that interprets a kernel's text: the instructions of `gather.ptx`, as PTX's manual defines them, on memory
//! that is a vector of bytes. It panics at an instruction that it does not know.

use std::collections::HashMap;
use std::ops::Range;

/// An operand.
#[derive(Clone, Debug)]
enum Operand {
    Register(usize),
    Number(u64),
    Vector(Vec<usize>),
    Address(usize, u64),
    /// A label, a parameter, or a register that the machine fills.
    Name(String),
}

#[derive(Debug)]
struct Instruction {
    /// Guard: runs only if the register has this value.
    only_if: Option<(usize, bool)>,
    /// Parts of its name, at most four.
    words: [&'static str; 4],
    operands: Vec<Operand>,
}

/// A kernel, ready to run.
pub(crate) struct Kernel {
    code: Vec<Instruction>,
    labels: HashMap<String, usize>,
    registers: usize,
}

/// One launch, as one of its warps sees it.
pub(crate) struct Launch {
    pub(crate) table: u64,
    pub(crate) count: u64,
    pub(crate) blocks: u64,
    pub(crate) threads: u64,
    /// Number of the block, and of the warp in it.
    pub(crate) block: u64,
    pub(crate) warp: u64,
}

struct Lane {
    at: usize,
    registers: Vec<u64>,
    thread: u64,
}

impl Kernel {
    pub(crate) fn parse(text: &'static str) -> Self {
        let body = text.split_once(".visible .entry").expect("a kernel").1;
        let body = body.split_once('{').expect("its begin").1.rsplit_once('}').expect("its end").0;
        let (mut registers, mut labels, mut code) = (HashMap::new(), HashMap::new(), Vec::new());
        // A line has one instruction at most.
        for line in body.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
            if let Some(label) = line.strip_suffix(':') {
                labels.insert(label.to_owned(), code.len());
                continue;
            }
            let statement = line.trim_end_matches(';');
            match statement.strip_prefix(".reg") {
                Some(list) => declare(list, &mut registers),
                None if statement.is_empty() => {}
                None => code.push(instruction(statement, &registers)),
            }
        }
        Self { code, labels, registers: registers.len() }
    }

    /// Runs a warp to its end. `wanted` are the bytes that may be read apart from the table; an aligned read is allowed
    /// if one of its bytes is wanted.
    pub(crate) fn run(&self, launch: &Launch, memory: &mut [u8], wanted: &[Range<u64>]) {
        let lane = |lane| Lane {
            at: 0,
            registers: vec![0; self.registers],
            thread: launch.warp * 32 + lane,
        };
        let mut lanes: Vec<Lane> = (0..32).map(lane).collect();
        loop {
            for lane in &mut lanes {
                self.run_lane(launch, lane, memory, wanted);
            }
            let at = lanes[0].at;
            assert!(lanes.iter().all(|lane| lane.at == at), "the warp has come apart");
            let instruction = &self.code[at];
            match instruction.words[0] {
                "ret" => return,
                _ => {
                    let [to, from, Operand::Number(source), ..] = &instruction.operands[..] else {
                        panic!("{instruction:?}");
                    };
                    let value = lanes[*source as usize].registers[register(from)];
                    lanes.iter_mut().for_each(|lane| lane.registers[register(to)] = value);
                }
            }
            lanes.iter_mut().for_each(|lane| lane.at += 1);
        }
    }

    /// Runs a thread up to where it waits for the others, or its end.
    fn run_lane(&self, launch: &Launch, lane: &mut Lane, memory: &mut [u8], wanted: &[Range<u64>]) {
        loop {
            let instruction = &self.code[lane.at];
            let words = &instruction.words;
            if matches!(words[0], "shfl" | "ret") {
                return;
            }
            lane.at += 1;
            if let Some((register, value)) = instruction.only_if
                && (lane.registers[register] != 0) != value
            {
                continue;
            }
            let operands = &instruction.operands;
            if let ("bra", Operand::Name(label)) =
                (words[0], operands.first().unwrap_or(&Operand::Number(0)))
            {
                lane.at = self.labels[label];
                continue;
            }
            let get = |operand: &Operand| match operand {
                Operand::Register(register) => lane.registers[*register],
                Operand::Number(number) => *number,
                Operand::Name(name) => match name.as_str() {
                    "%tid.x" => lane.thread,
                    "%ntid.x" => launch.threads,
                    "%ctaid.x" => launch.block,
                    "%nctaid.x" => launch.blocks,
                    _ => panic!("{name}"),
                },
                _ => panic!("{instruction:?}"),
            };
            let address = |operand: &Operand| match operand {
                Operand::Address(register, offset) => lane.registers[*register] + offset,
                _ => panic!("{instruction:?}"),
            };
            let value = |index: usize| get(&operands[index]);
            let mask =
                if words.iter().any(|word| word.ends_with("32")) { 0xffff_ffff } else { u64::MAX };
            let result = match words {
                ["fence", ..] => continue,
                ["ld", "param", ..] => match &operands[1] {
                    Operand::Name(name) if name == "[param_table]" => launch.table,
                    _ => launch.count,
                },
                ["ld", "global", kind @ ..] => {
                    let bytes = bytes_of(kind);
                    let at = address(&operands[1]);
                    let is_wanted = |range: &Range<u64>| range.start < at + bytes && at < range.end;
                    let in_table = launch.table..launch.table + launch.count * 32;
                    assert_eq!(at % bytes, 0, "not aligned: {instruction:?}");
                    assert!(
                        is_wanted(&in_table) || wanted.iter().any(is_wanted),
                        "reads at {at:#x}"
                    );
                    let found = &memory[at as usize..(at + bytes) as usize];
                    if let Operand::Vector(registers) = &operands[0] {
                        for (register, word) in registers.iter().zip(found.chunks(4)) {
                            lane.registers[*register] = number(word);
                        }
                        continue;
                    }
                    number(found)
                }
                ["st", "global", kind @ ..] => {
                    let bytes = bytes_of(kind);
                    let at = address(&operands[0]);
                    assert_eq!(at % bytes, 0, "not aligned: {instruction:?}");
                    let place = &mut memory[at as usize..(at + bytes) as usize];
                    match &operands[1] {
                        Operand::Vector(registers) => {
                            for (register, word) in registers.iter().zip(place.chunks_mut(4)) {
                                word.copy_from_slice(&lane.registers[*register].to_le_bytes()[..4]);
                            }
                        }
                        one => place.copy_from_slice(&get(one).to_le_bytes()[..bytes as usize]),
                    }
                    continue;
                }
                ["mov", ..] => match (&operands[0], &operands[1]) {
                    (Operand::Vector(halves), whole) => {
                        let whole = get(whole);
                        lane.registers[halves[0]] = whole & 0xffff_ffff;
                        lane.registers[halves[1]] = whole >> 32;
                        continue;
                    }
                    (_, Operand::Vector(halves)) => {
                        lane.registers[halves[1]] << 32 | lane.registers[halves[0]]
                    }
                    (_, one) => get(one),
                },
                ["cvt", "u32", ..] => value(1) & 0xffff_ffff,
                ["cvt" | "cvta", ..] => value(1),
                ["add", ..] => value(1).wrapping_add(value(2)) & mask,
                ["sub", ..] => value(1).wrapping_sub(value(2)) & mask,
                ["neg", ..] => value(1).wrapping_neg() & mask,
                ["mul", "wide", ..] => value(1) * value(2),
                ["mul", "lo", ..] => (value(1) * value(2)) & mask,
                ["mad", "lo", ..] => (value(1) * value(2) + value(3)) & mask,
                ["and", ..] => value(1) & value(2),
                ["shl", ..] => value(1) << value(2) & mask,
                ["shr", ..] => value(1) >> value(2),
                ["min", ..] => value(1).min(value(2)),
                ["setp", "lt", ..] => u64::from(value(1) < value(2)),
                ["setp", "eq", ..] => u64::from(value(1) == value(2)),
                ["setp", "ne", ..] => u64::from(value(1) != value(2)),
                ["selp", ..] if value(3) != 0 => value(1),
                ["selp", ..] => value(2),
                ["shf", "r", "wrap", _] => (value(2) << 32 | value(1)) >> (value(3) & 31) & mask,
                _ => panic!("{instruction:?}"),
            };
            lane.registers[register(&operands[0])] = result;
        }
    }
}

/// Declares registers: `.u64 one, two` and `.b32 many<8>`, each with its type.
fn declare(list: &str, registers: &mut HashMap<String, usize>) {
    let names = list.trim().split_once(' ').expect("a type and names").1;
    for name in names.split(',').map(str::trim) {
        let (name, count) = match name.split_once('<') {
            Some((name, count)) => (name, count.trim_end_matches('>').parse().ok()),
            None => (name, None),
        };
        for number in 0..count.unwrap_or(1) {
            let full = if count.is_some() { format!("{name}{number}") } else { name.to_owned() };
            let next = registers.len();
            registers.insert(full, next);
        }
    }
}

fn instruction(statement: &'static str, registers: &HashMap<String, usize>) -> Instruction {
    let (only_if, rest) = match statement.strip_prefix('@') {
        Some(guarded) => {
            let (guard, rest) = guarded.split_once(' ').expect("a guard and an instruction");
            let name = guard.trim_start_matches('!');
            (Some((registers[name], !guard.starts_with('!'))), rest)
        }
        None => (None, statement),
    };
    let (name, mut list) = rest.trim().split_once(' ').unwrap_or((rest, ""));
    let mut operands = Vec::new();
    while !list.trim().is_empty() {
        list = list.trim_start_matches([',', ' ']);
        let end = match list.starts_with('{') {
            true => list.find('}').expect("the end of a vector") + 1,
            false => list.find(',').unwrap_or(list.len()),
        };
        operands.push(operand(list[..end].trim(), registers));
        list = &list[end..];
    }
    let mut words = [""; 4];
    words.iter_mut().zip(name.split('.')).for_each(|(word, part)| *word = part);
    Instruction { only_if, words, operands }
}

fn operand(text: &str, registers: &HashMap<String, usize>) -> Operand {
    if let Some(list) = text.strip_prefix('{') {
        let names = list.trim_end_matches('}').split(',');
        return Operand::Vector(names.map(|name| registers[name.trim()]).collect());
    }
    let inner = text.trim_start_matches('[').trim_end_matches(']');
    let (base, offset) = inner.split_once('+').unwrap_or((inner, "0"));
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    match (registers.get(base), number) {
        (Some(register), _) if text.starts_with('[') => {
            Operand::Address(*register, offset.parse().expect("an offset"))
        }
        (Some(register), _) => Operand::Register(*register),
        (None, Some(number)) => Operand::Number(number),
        (None, None) => Operand::Name(text.to_owned()),
    }
}

fn register(operand: &Operand) -> usize {
    match operand {
        Operand::Register(register) => *register,
        _ => panic!("{operand:?} is no register"),
    }
}

fn bytes_of(kind: &[&str]) -> u64 {
    match kind {
        ["b8", ..] => 1,
        ["u64", ..] => 8,
        ["v4", ..] => 16,
        _ => panic!("{kind:?}"),
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
