//! The log: one line for each event, fields instead of sentences, on standard error.

use tracing_subscriber::EnvFilter;

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
        .with_writer(std::io::stderr)
        .with_ansi(false);
    // Fails only where a subscriber is set already.
    let _ = subscriber.try_init();
}
