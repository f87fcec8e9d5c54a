//! From the name of a staged file to the field and the list positions that it is for.
//!
//! In this order, so that a copied row always goes back to where it came from:
//!
//! 1. A name that the read side shows (`scenes[2].clip.bin`) is that value's.
//! 2. A name that was cut to fit a directory entry ends in a hash of the whole, also under another
//!    extension: the positions that were cut away are found by trying ([`Fields::cut`]).
//! 3. Else the longest field that the name begins with, up to a dot or its end: `info.thumb.tar.gz`
//!    is `info.thumb` and not `info`. People may write a field's own name where the read side escapes
//!    it (`50%.jpg` for `50%25.bin`), unless two fields could be meant.

use percent_encoding::percent_decode_str;

use super::litter::{not_ended, unfinished};
use crate::name::{self, VALUE_SUFFIX, ValueName};
use crate::tree::{Found, LeafIndex, LeafName, Shape};
use crate::units;

/// A value of a row: a field, and an index for each list above it, outermost first.
pub type Slot = (LeafIndex, Vec<u64>);

/// The longest list that a batch can make. A list has all elements up to the highest index, so
/// `frames[99999999999].jpg` would be a row of terabytes; a million elements are some 40 MiB.
pub const ELEMENTS_MAX: u64 = 1 << 20;
/// How many list positions are tried for a name that was cut; each costs a hash, some 1 µs.
const TRIES: u64 = 1 << 12;
/// The hash at the end of a cut name: `~` and so many hex digits.
const HASH_DIGITS: usize = 8;
/// How alike a name must be to a field to be taken for a slip of it (Jaro-Winkler, 1 is equal).
const ALIKE: f64 = 0.8;
/// How many fields a fault names.
const NAMED: usize = 20;

/// The names of a table's Blob fields, as people write them.
pub struct Fields<'a> {
    shape: &'a Shape,
    spellings: Vec<Spelling>,
}

/// One way to write a field.
struct Spelling {
    leaf: LeafIndex,
    how: How,
    /// What stands before, between and after its list positions.
    pieces: Vec<String>,
}

/// Of two spellings that fit equally well the greater is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    /// As the field is called.
    Plain,
    /// As the read side shows it.
    Shown,
}

impl<'a> Fields<'a> {
    /// Prepares the names of a shape.
    pub fn new(shape: &'a Shape) -> Self {
        let mut spellings = Vec::new();
        for (leaf, name) in shape.indexed() {
            let shown: Vec<String> = name.pattern().split("[]").map(ToOwned::to_owned).collect();
            let decode =
                |piece: &String| percent_decode_str(piece).decode_utf8_lossy().into_owned();
            let plain: Vec<String> = shown.iter().map(decode).collect();
            if plain != shown {
                spellings.push(Spelling { leaf, how: How::Plain, pieces: plain });
            }
            spellings.push(Spelling { leaf, how: How::Shown, pieces: shown });
        }
        Self { shape, spellings }
    }

    /// The value that a file name is for.
    ///
    /// # Errors
    /// Why it is for none, and what would be right.
    pub fn find(&self, file_name: &str) -> Result<Slot, String> {
        let slot = match self.shape.find(file_name) {
            Some(Found::Value(leaf, indices)) => (leaf, indices),
            Some(Found::Compare(_)) | None => match self.cut(file_name) {
                Some(slot) => slot,
                None => self.longest(file_name)?,
            },
        };
        match slot.1.iter().find(|index| **index >= ELEMENTS_MAX) {
            Some(index) => Err(format!(
                "the list position {index} is too high: a list can have {ELEMENTS_MAX} elements here"
            )),
            None => Ok(slot),
        }
    }

    /// The one Blob column that a file alone is the value of.
    ///
    /// # Errors
    /// That there is none, or more than one.
    pub fn single(&self) -> Result<LeafIndex, String> {
        // A dot is between the names of a path: no column has one in its own.
        let column = |leaf: &LeafName| leaf.lists() == 0 && !leaf.pattern().contains('.');
        let mut columns = self.shape.indexed().filter(|(_, leaf)| column(leaf));
        let hint = "put the file into a directory, one for each row, and name it after the field";
        match (columns.next(), columns.next()) {
            (Some((leaf, _)), None) => Ok(leaf),
            (None, _) => Err(format!(
                "a file alone is a row of a table with one Blob column, and this table has none that is no list and in no struct: {hint} ({})",
                self.list()
            )),
            (Some(_), Some(_)) => Err(format!(
                "a file alone is a row of a table with one Blob column, and this table has more: {hint} ({})",
                self.list()
            )),
        }
    }

    /// A name that a file can have, for messages: `image.jpg`.
    pub fn example(&self) -> String {
        self.shape.leaves().first().map_or_else(|| "image.jpg".to_owned(), example)
    }

    /// How a value is called, for messages: `scenes[2].clip`.
    pub fn spell(&self, (leaf, indices): &Slot) -> String {
        let pattern = self.shape.leaf(*leaf).map_or("", LeafName::pattern);
        name::with_indices(pattern, indices)
    }

    fn longest(&self, file_name: &str) -> Result<Slot, String> {
        let fits = self.spellings.iter().filter_map(|spelling| {
            let (len, indices) = spelling.begins(file_name)?;
            Some(((len, spelling.how), (spelling.leaf, indices)))
        });
        let mut fits: Vec<_> = fits.collect();
        let best = fits.iter().map(|(rank, _)| *rank).max();
        // Half a file has the field's name too; what is there is not the value. A field may be called
        // like one, and then its own name is the value's.
        if best.is_none_or(|(len, _)| len < file_name.len())
            && let Some(by) = unfinished(file_name)
        {
            return Err(not_ended(file_name, by));
        }
        let best = best.ok_or_else(|| self.no_field(file_name))?;
        fits.retain(|(rank, _)| *rank == best);
        let named: Vec<String> =
            fits.iter().map(|(_, slot)| format!("{}{VALUE_SUFFIX}", self.spell(slot))).collect();
        match (fits.pop(), fits.is_empty()) {
            (Some((_, slot)), true) => Ok(slot),
            _ => Err(format!(
                "{file_name} can be meant for several fields: write {}",
                named.join(" or ")
            )),
        }
    }

    /// A name that was cut, under any extension.
    fn cut(&self, file_name: &str) -> Option<Slot> {
        file_name.match_indices('~').find_map(|(at, _)| {
            let end = at + 1 + HASH_DIGITS;
            let hash = file_name.get(at + 1..end)?;
            let rest = &file_name[end..];
            if !hash.bytes().all(|b| b.is_ascii_hexdigit())
                || !(rest.is_empty() || rest.starts_with('.'))
            {
                return None;
            }
            let (kept, shown) = (&file_name[..at], format!("{}{VALUE_SUFFIX}", &file_name[..end]));
            self.shape
                .indexed()
                .find_map(|(index, leaf)| Some((index, positions(leaf, kept, &shown)?)))
        })
    }

    fn no_field(&self, file_name: &str) -> String {
        let text = match self.near(file_name) {
            Some(near) => format!("{file_name} is for no field of the table: did you mean {near}?"),
            None => format!("{file_name} is for no field of the table."),
        };
        format!("{text} Its Blob fields are {}", self.list())
    }

    /// The field that a name may be a slip of, with a word on its positions where those are wrong.
    fn near(&self, file_name: &str) -> Option<String> {
        let whole = file_name.to_lowercase();
        let mut stem = whole.as_str();
        loop {
            let pattern =
                ValueName::parse(stem).map_or_else(|| stem.to_owned(), |parsed| parsed.pattern);
            let bare = pattern.replace("[]", "");
            let alike = |leaf: &LeafName| {
                let field = leaf.pattern().to_lowercase().replace("[]", "");
                if field == bare { 2.0 } else { strsim::jaro_winkler(&field, &bare) }
            };
            let scored = self.shape.leaves().iter().map(|leaf| (alike(leaf), leaf));
            let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b));
            if let Some((score, leaf)) = best
                && score > ALIKE
            {
                return Some(example(leaf));
            }
            stem = stem.rsplit_once('.')?.0;
        }
    }

    fn list(&self) -> String {
        let leaves = self.shape.leaves();
        let mut names: Vec<String> = leaves.iter().take(NAMED).map(example).collect();
        if leaves.len() > NAMED {
            names.push(format!("and {} more", leaves.len() - NAMED));
        }
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

impl Spelling {
    /// How many bytes of a name are this field, and the positions that it gives; `None` where the
    /// name does not begin with it.
    fn begins(&self, file_name: &str) -> Option<(usize, Vec<u64>)> {
        let mut pieces = self.pieces.iter();
        let mut rest = file_name.strip_prefix(pieces.next()?.as_str())?;
        let mut indices = Vec::new();
        for piece in pieces {
            let (digits, after) = rest.strip_prefix('[')?.split_once(']')?;
            indices.push(name::decimal(digits)?);
            rest = after.strip_prefix(piece.as_str())?;
        }
        let ends = rest.is_empty() || rest.starts_with('.');
        ends.then_some((file_name.len() - rest.len(), indices))
    }
}

/// A field with a position for each of its lists, as somebody would write it: `frames[0]`.
fn example(leaf: &LeafName) -> String {
    name::with_indices(leaf.pattern(), &vec![0; leaf.lists()])
}

/// The list positions with which a leaf is shown as `shown`, of which `kept` was left by the cut.
fn positions(leaf: &LeafName, kept: &str, shown: &str) -> Option<Vec<u64>> {
    let mut indices = Vec::new();
    let mut rest = kept;
    for (at, piece) in leaf.pattern().split("[]").enumerate() {
        if at > 0 {
            let Some((digits, after)) = rest.strip_prefix('[').and_then(|r| r.split_once(']'))
            else {
                // The cut is in front of this position or in it.
                break;
            };
            indices.push(name::decimal(digits)?);
            rest = after;
        }
        match rest.strip_prefix(piece) {
            Some(after) => rest = after,
            None if piece.starts_with(rest) => break,
            None => return None,
        }
    }
    let unknown = leaf.lists().checked_sub(indices.len())?;
    let known = indices.len();
    let highest = highest_tried(unknown);
    indices.resize(leaf.lists(), 0);
    while leaf.file_name(&indices) != shown {
        // Counts up, the innermost position first.
        let next = indices[known..].iter().rposition(|index| *index < highest)?;
        indices[known + next] += 1;
        indices[known + next + 1..].fill(0);
    }
    Some(indices)
}

/// The highest value that each of so many unknown positions is tried with.
fn highest_tried(unknown: usize) -> u64 {
    let power = u32::try_from(unknown).unwrap_or(u32::MAX);
    let within = |n: &u64| n.checked_pow(power).is_some_and(|tries| tries <= TRIES);
    match unknown {
        0 => 0,
        _ => units::u64_of((1..=TRIES).take_while(within).count()).saturating_sub(1),
    }
}
