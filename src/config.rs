//! Options from a file and from `-o`, as the flags that they stand for.
//!
//! The order in which a value is looked for is: a flag, `-o`, an environment variable, the
//! configuration file (README "Options"). Flags and variables are the argument parser's; this
//! module turns the other two into pairs of a flag's name and its value.

mod generic;

use std::path::Path;

use crate::error::{Error, IoContext as _, Kind, Result};

/// One option: the long flag's name without dashes, and its value; none for a switch.
pub type Pair = (String, Option<String>);

/// Parses the value of `-o`: `a,b=c`. Underscores are dashes, as in `allow_other`; what `mount(8)` and
/// fstab say to every file system is understood too ([`generic`]).
///
/// # Errors
/// [`Kind::Invalid`] for a value without a name, and for what cannot be had.
pub fn mount_options(text: &str) -> Result<Vec<Pair>> {
    let options = text.split(',').filter(|option| !option.is_empty());
    let understood = options.map(|option| match option.split('=').next() {
        Some("") => Err(Error::new(Kind::Invalid, format!("-o {option:?} has no name"))),
        _ => generic::understood(option),
    });
    understood.filter_map(Result::transpose).collect()
}

/// Reads a configuration file: TOML, one key for each long flag; a list repeats its flag, `true`
/// is a switch and `false` its absence. A value may be a secret, so no error shows one.
///
/// # Errors
/// [`Kind::Invalid`] where it cannot be read or holds something else.
pub fn file(path: &Path) -> Result<Vec<Pair>> {
    let text = std::fs::read_to_string(path)
        .context(Kind::Invalid, || format!("read {}", path.display()))?;
    let table: toml::Table = text.parse().map_err(|e| faulty(path, &text, &e))?;
    let mut pairs = Vec::new();
    for (key, value) in table {
        let name = key.replace('_', "-");
        let values = match value {
            toml::Value::Array(values) => values,
            one => vec![one],
        };
        for value in values {
            match value {
                toml::Value::Boolean(true) => pairs.push((name.clone(), None)),
                toml::Value::Boolean(false) => {}
                toml::Value::String(text) => pairs.push((name.clone(), Some(text))),
                toml::Value::Integer(number) => {
                    pairs.push((name.clone(), Some(number.to_string())));
                }
                other => {
                    let (shown, sort) = (path.display(), other.type_str());
                    let text = format!("{shown}: {key} cannot be a {sort}");
                    return Err(Error::new(Kind::Invalid, text));
                }
            }
        }
    }
    Ok(pairs)
}

/// A fault of a configuration file by its line: the parser's own text shows what is written there.
fn faulty(path: &Path, text: &str, error: &toml::de::Error) -> Error {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (shown, line) = (path.display(), before.matches('\n').count() + 1);
    let text = format!("configuration file {shown} line {line}: {}", error.message());
    Error::new(Kind::Invalid, text.replace('\n', " "))
}

/// Reads `KEY=VALUE` lines; blank lines and those that start with `#` are skipped. Values are
/// secrets, so no error shows one.
///
/// # Errors
/// [`Kind::Invalid`] where it cannot be read or a line has no `=`.
pub fn storage_options_file(path: &Path) -> Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(path)
        .context(Kind::Invalid, || format!("read {}", path.display()))?;
    let lines = text
        .lines()
        .zip(1..)
        .filter(|(line, _)| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    lines
        .map(|(line, number)| match line.split_once('=') {
            Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
            None => Err(Error::new(
                Kind::Invalid,
                format!("{} line {number} is not KEY=VALUE", path.display()),
            )),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: Option<&str>) -> Pair {
        (name.to_owned(), value.map(ToOwned::to_owned))
    }

    #[test]
    fn mount_options_are_flags() {
        let parsed =
            mount_options("allow_other,refresh=5s,_netdev,x-systemd.automount,uid=7").unwrap();
        assert_eq!(
            parsed,
            [pair("allow-other", None), pair("refresh", Some("5s")), pair("uid", Some("7"))]
        );
        assert!(mount_options("").unwrap().is_empty());
        assert!(mount_options("=5").is_err());
    }

    #[test]
    fn a_configuration_file_is_flags() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, "allow_other = true\nthreads = 3\nallow-external = [\"/a\", \"/b\"]\nforeground = false\n").unwrap();
        let parsed = file(&path).unwrap();
        for expected in [
            pair("allow-other", None),
            pair("threads", Some("3")),
            pair("allow-external", Some("/a")),
            pair("allow-external", Some("/b")),
        ] {
            assert!(parsed.contains(&expected), "{expected:?} in {parsed:?}");
        }
        assert_eq!(parsed.len(), 4);
        std::fs::write(&path, "threads = 1.5").unwrap();
        assert!(file(&path).unwrap_err().to_string().contains("threads cannot be a float"));
    }

    #[test]
    fn a_faulty_configuration_file_is_named_by_line_and_shows_no_value() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        for (text, line) in [
            ("threads = 2\nstorage_option = \"aws_secret_access_key=hunter2\n", 2),
            ("\n\nstorage_option = hunter2\n", 3),
            ("storage_option = \"a=b\" hunter2", 1),
            ("hunter2", 1),
            ("threads = 2\nthreads = 'hunter2'\n", 2),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = file(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("line {line}: ")), "{text:?}: {error}");
            assert!(!error.contains("hunter2"), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_faulty_line_of_secrets_is_named_by_number_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "# comment\n\naws_region = eu\nsecret-without-key\n").unwrap();
        let error = storage_options_file(&path).unwrap_err().to_string();
        assert!(error.contains("line 4") && !error.contains("secret-without"), "{error}");
    }
}
