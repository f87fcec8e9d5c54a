//! The log: one line for each event, fields instead of sentences, on standard error.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;

use crate::error::without_credentials;

/// What is logged when nobody says: our own warnings, and only errors of libraries.
const DEFAULT: &str = "error,lancefs=info";

/// What is logged whoever says what: at more than this, the AWS SDK shows whole answers of services
/// of credentials, with the credentials in them (`aws-config` 1, `src/meta/credentials/chain.rs`).
const SECRETS: &str = "aws_config=error";

/// Starts logging. `filter` is in the words of `RUST_LOG`; where it cannot be understood the default
/// holds. Calling it twice changes nothing.
pub fn start(filter: Option<&str>) {
    let filter = filter
        .and_then(|text| EnvFilter::try_new(text).ok())
        .unwrap_or_else(|| EnvFilter::new(DEFAULT));
    let filter = match SECRETS.parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Redacting(io::stderr()))
        .with_ansi(false);
    // Fails only where a subscriber is set already.
    let _ = subscriber.try_init();
}

/// Takes credentials out of URLs in lines of libraries, which show what they asked for. A line comes
/// in one piece.
struct Redacting<W>(W);

impl<W: Write> Write for Redacting<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(without_credentials(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_names_no_password() {
        let mut log = Redacting(Vec::new());
        log.write_all(b"ERROR object_store: http://me:secret@host:9/b refused\n").unwrap();
        log.flush().unwrap();
        assert_eq!(log.0, b"ERROR object_store: http://me@host:9/b refused\n");
    }
}
