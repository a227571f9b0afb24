//! The `polyrail` command.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    polyrail_cli::main()
}
