//! Questions to whoever sits at the terminal.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

/// What was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Go on.
    Yes,
    /// Leave it.
    No,
    /// There is nobody to ask.
    Nobody,
}

/// Asks on standard error and reads from standard input, if both are a terminal. `otherwise` is
/// what an empty line means; the end of the input is [`Answer::No`].
pub fn ask(question: &str, otherwise: Answer) -> Answer {
    let input = std::io::stdin();
    if !input.is_terminal() || !std::io::stderr().is_terminal() {
        return Answer::Nobody;
    }
    let choice = if otherwise == Answer::Yes { "[Y/n]" } else { "[y/N]" };
    loop {
        let _ = write!(std::io::stderr(), "{question} {choice} ");
        let mut line = String::new();
        if input.lock().read_line(&mut line).is_ok_and(|read| read > 0) {
            if let Some(answer) = understood(&line, otherwise) {
                return answer;
            }
        } else {
            let _ = writeln!(std::io::stderr());
            return Answer::No;
        }
    }
}

fn understood(line: &str, otherwise: Answer) -> Option<Answer> {
    match line.trim().to_ascii_lowercase().as_str() {
        "" => Some(otherwise),
        "y" | "yes" => Some(Answer::Yes),
        "n" | "no" => Some(Answer::No),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_word_or_nothing() {
        for (line, answer) in [
            ("\n", Some(Answer::No)),
            ("y\n", Some(Answer::Yes)),
            (" YES \n", Some(Answer::Yes)),
            ("n", Some(Answer::No)),
            ("perhaps\n", None),
        ] {
            assert_eq!(understood(line, Answer::No), answer, "{line:?}");
        }
        assert_eq!(understood("\n", Answer::Yes), Some(Answer::Yes));
    }
}
