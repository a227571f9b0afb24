//! Numbers for people: few digits, and always a unit or a column that names it.

/// Formats a time given in microseconds, in the unit that keeps it short: `4.41us`, `1.25ms`, `2.10s`.
pub fn show_micros(micros: f64) -> String {
    let (value, unit) = match micros {
        m if m < 1_000.0 => (m, "us"),
        m if m < 1_000_000.0 => (m / 1_000.0, "ms"),
        m => (m / 1_000_000.0, "s"),
    };
    format!("{}{unit}", three_digits(value))
}

/// Formats a rate in GB/s, without its unit.
pub fn show_gb_per_s(rate: f64) -> String {
    if rate != 0.0 && rate < 0.01 { format!("{rate:.5}") } else { three_digits(rate) }
}

/// Formats a ratio with two decimals.
pub fn show_ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

/// Formats a number of things: `1 flow`, `2 flows`.
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats a count, shortened from ten million on: `12.3M`.
pub fn show_count(count: u64) -> String {
    if count < 10_000_000 { count.to_string() } else { format!("{:.1}M", count as f64 / 1e6) }
}

/// Formats a rate per second, shortened from a thousand on: `431k`, `1.20M`.
pub fn show_rate(rate: f64) -> String {
    match rate {
        r if r >= 999_500.0 => three_digits(r / 1e6) + "M",
        r if r >= 999.5 => three_digits(r / 1e3) + "k",
        r => three_digits(r),
    }
}

/// Formats a memory size in the unit of 1024 that keeps it short: `512 B`, `2.00 TiB`.
pub fn show_memory(bytes: u64) -> String {
    let scale = |unit: &str, shift: u32| {
        format!("{} {unit}", three_digits(bytes as f64 / (1_u64 << shift) as f64))
    };
    match bytes {
        0..1024 => format!("{bytes} B"),
        _ if bytes < 1 << 20 => scale("KiB", 10),
        _ if bytes < 1 << 30 => scale("MiB", 20),
        _ if bytes < 1 << 40 => scale("GiB", 30),
        _ => scale("TiB", 40),
    }
}

fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Returns a word of a command line with its invitations shortened to `pr2-…`. Reports are passed on, and an invitation
/// admits everyone who has it.
pub fn without_invitation(word: &str) -> String {
    let mut parts = word.split(INVITATION_PREFIX);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric());
        shown.push_str(INVITATION_PREFIX);
        shown.push('…');
        shown.push_str(rest);
    }
    shown
}

const INVITATION_PREFIX: &str = "pr2-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_report_has_an_invitation() {
        let good = format!("pr2-{}", "0f".repeat(32));
        let told = without_invitation(&format!("--connect=10.0.0.1:7000/{good}"));
        assert_eq!(told, "--connect=10.0.0.1:7000/pr2-…");
        let told = without_invitation(&format!("bench --connect a:1/{good} --sizes 8; {good}"));
        assert_eq!(told, "bench --connect a:1/pr2-… --sizes 8; pr2-…");
        assert_eq!(without_invitation("--sizes"), "--sizes");
    }

    #[test]
    fn times_and_rates_keep_three_digits() {
        assert_eq!(show_micros(4.412), "4.41us");
        assert_eq!(show_micros(999.4), "999us");
        assert_eq!(show_micros(1_250.0), "1.25ms");
        assert_eq!(show_micros(2_100_000.0), "2.10s");
        assert_eq!(show_gb_per_s(12.34), "12.3");
        assert_eq!(show_gb_per_s(0.4125), "0.412");
        assert_eq!(show_gb_per_s(0.000_88), "0.00088");
        assert_eq!(show_ratio(0.951), "0.95");
        assert_eq!(show_rate(430_600.0), "431k");
        assert_eq!(show_rate(1_200_000.0), "1.20M");
        assert_eq!(show_rate(12.25), "12.2");
        assert_eq!(show_count(9_999_999), "9999999");
        assert_eq!(show_count(12_345_678), "12.3M");
        assert_eq!([0, 1023].map(show_memory), ["0 B", "1023 B"]);
        assert_eq!([1536, 12_800 << 20].map(show_memory), ["1.50 KiB", "12.5 GiB"]);
        assert_eq!(show_memory(2 << 40), "2.00 TiB");
    }
}
