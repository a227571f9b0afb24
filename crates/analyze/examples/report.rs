//! Makes the report of a profile with everything in it: compared with a second profile, and with
//! predictions that are wrong in a known way.
//!
//! `cargo run -p polyrail-analyze --example report -- DIR BASE_DIR REPORT.html`
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;

use polyrail_analyze::{Analysis, Comparison, Judgement, Options, html, read_predictions};
use polyrail_profile::Folder;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, base, report] = arguments.as_slice() else {
        return Err("usage: report DIR BASE_DIR REPORT.html".into());
    };
    let mut analysis = Analysis::of(&Folder::open(dir)?, Options::default())?;
    let base = Analysis::of(&Folder::open(base)?, Options::default())?;
    analysis.comparison = Some(Comparison::of(&analysis, &base)?);
    // A simulator that knows latency and rate, and no protocol.
    let mut text = String::from("src,dst,size_bytes,predicted_time_ns,path,simulator\n");
    for one in &analysis.configurations {
        let time_ns = 3_000.0 + one.size_bytes as f64 / 370.0;
        text += &format!(
            "{},{},{},{time_ns},{},two-parameter\n",
            one.src, one.dst, one.size_bytes, one.path
        );
    }
    let file = Path::new(report).with_extension("predictions.csv");
    std::fs::write(&file, text)?;
    let predictions = read_predictions(&file)?;
    analysis.predictions = Some(Judgement::of(&analysis, &file, &predictions)?);
    std::fs::write(report, html(&analysis))?;
    println!("{report}: {} charts' worth of data", analysis.links.len());
    Ok(())
}
