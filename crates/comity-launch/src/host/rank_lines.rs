//! Cuts one stream of a rank into pieces that can be written between those of other ranks.
/// A line longer than this is written in parts, so that a rank that never ends its line needs no more memory.
pub(crate) const LONGEST: usize = 64 << 10;

/// Output stream of a rank.
#[derive(Debug)]
pub(crate) enum Lines {
    /// Its bytes pass at once, also a prompt that waits for an answer: the only rank, untagged; the one that a user talks to.
    Straight,
    Whole(WholeLines),
}

/// A stream whose lines are shown when they are whole.
#[derive(Debug, Default)]
pub(crate) struct WholeLines {
    tag: String,
    /// The tag of a further part of a line that was too long.
    more: String,
    part: Vec<u8>,
    /// The line has begun in an earlier part.
    begun: bool,
    /// Only the last text of a line that is written over (by `\r`) is shown.
    updates: bool,
    /// Text before the last `\r`, unless that was empty.
    before: Vec<u8>,
    /// There was a `\r` in this line, and what it says was not asked for since.
    updated: Option<bool>,
}

/// The colours of tags: of all that terminals have, those that mean neither an error nor success.
const COLOURS: [u8; 6] = [36, 33, 35, 34, 96, 95];

impl Lines {
    pub(crate) fn new(rank: usize, size: usize, tag: bool, colour: bool) -> Self {
        if size == 1 && !tag {
            return Self::Straight;
        }
        if tag {
            return Self::tagged(rank, "", colour);
        }
        Self::Whole(WholeLines::default())
    }

    /// Each line begins with "[3@host] ", or "[3] " where there is no `place`.
    pub(crate) fn tagged(rank: usize, place: &str, colour: bool) -> Self {
        let paint = |tag: String| match colour {
            true => format!("\x1b[{}m{tag}\x1b[0m ", COLOURS[rank % COLOURS.len()]),
            false => format!("{tag} "),
        };
        let tag = paint(format!("[{rank}{place}]"));
        let more = paint(format!("[{rank}+{place}]"));
        Self::Whole(WholeLines { tag, more, updates: true, ..WholeLines::default() })
    }

    /// Whole lines without a tag, of each what it says last.
    pub(crate) fn plain() -> Self {
        Self::Whole(WholeLines { updates: true, ..WholeLines::default() })
    }

    /// Takes what was read and appends to `out` what can be written now: whole lines, or parts that end as one.
    pub(crate) fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Straight => out.extend_from_slice(bytes),
            Self::Whole(lines) => lines.take(bytes, out),
        }
    }

    /// Current text of a line that is written over, with its tag, if that is news.
    pub(crate) fn progress(&mut self) -> Option<Vec<u8>> {
        let Self::Whole(lines) = self else { return None };
        let updated = lines.updated.as_mut()?;
        let text = if lines.part.is_empty() { &lines.before } else { &lines.part };
        let news = std::mem::take(updated) && !text.is_empty();
        news.then(|| [lines.tag.as_bytes(), text].concat())
    }

    /// The stream has ended: appends what is left of its last line.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if let Self::Whole(lines) = self
            && !(lines.part.is_empty() && lines.before.is_empty())
        {
            lines.end_line(out);
        }
    }
}

impl WholeLines {
    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let updates = self.updates;
        for piece in bytes.split_inclusive(|&b| b == b'\n' || (updates && b == b'\r')) {
            let text = piece.strip_suffix(b"\n").unwrap_or(piece);
            let over = text.len() == piece.len() && self.updates && piece.ends_with(b"\r");
            self.part.extend_from_slice(text.strip_suffix(b"\r").filter(|_| over).unwrap_or(text));
            self.cut_long(out);
            if over {
                self.updated = Some(true);
                if !self.part.is_empty() {
                    self.before = std::mem::take(&mut self.part);
                }
            } else if text.len() < piece.len() {
                self.end_line(out);
            } else if let Some(updated) = &mut self.updated {
                *updated = true;
            }
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        if self.part.is_empty() {
            self.part.append(&mut self.before);
        }
        out.extend_from_slice(if self.begun { self.more.as_bytes() } else { self.tag.as_bytes() });
        out.append(&mut self.part);
        out.push(b'\n');
        self.before.clear();
        self.begun = false;
        self.updated = None;
    }

    /// Moves the front of a line that is too long to `out`, never splitting a character.
    fn cut_long(&mut self, out: &mut Vec<u8>) {
        while self.part.len() > LONGEST {
            let at = boundary(&self.part, LONGEST);
            out.extend_from_slice(if self.begun { self.more.as_bytes() } else { self.tag.as_bytes() });
            out.extend(self.part.drain(..at));
            out.push(b'\n');
            self.begun = true;
        }
    }
}

/// The last place at or before `at` that is not inside a UTF-8 character; `at` itself when the bytes are no UTF-8.
fn boundary(bytes: &[u8], at: usize) -> usize {
    let inside = |i: usize| bytes.get(i).is_some_and(|b| b & 0xc0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|&i| !inside(i)).filter(|&i| i > 0).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn feed(lines: &mut Lines, chunks: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in chunks {
            lines.take(chunk, &mut out);
            assert!(out.is_empty() || matches!(lines, Lines::Straight) || out.ends_with(b"\n"));
        }
        lines.finish(&mut out);
        out
    }

    #[test]
    fn lines_wait_until_they_are_whole() {
        let mut lines = Lines::new(3, 4, true, false);
        assert_eq!(feed(&mut lines, &[b"a", b"b\nc\n\nd", b"", b"e"]), b"[3] ab\n[3] c\n[3] \n[3] de\n");
        assert_eq!(feed(&mut Lines::new(3, 4, false, false), &[b"a", b"b\nc"]), b"ab\nc\n");
        assert_eq!(feed(&mut Lines::new(0, 1, false, false), &[b"a", b"b\nc"]), b"ab\nc");
        assert_eq!(feed(&mut Lines::new(0, 1, true, false), &[b"x\n"]), b"[0] x\n");
    }

    #[test]
    fn bytes_that_are_no_text_pass() {
        let all: Vec<u8> = (0..=255).filter(|&b| b != b'\n').collect();
        assert_eq!(feed(&mut Lines::new(0, 2, false, false), &[&all, b"\n"]), [&all[..], b"\n"].concat());
    }

    #[test]
    fn of_a_line_that_is_written_over_the_last_state_is_shown_and_each_can_be_asked_for() {
        let mut lines = Lines::tagged(2, "@b", false);
        let mut out = Vec::new();
        let mut after = |bytes: &[u8]| {
            lines.take(bytes, &mut out);
            lines.progress().map(|p| String::from_utf8(p).unwrap())
        };
        assert_eq!(after(b"\r 10%").as_deref(), Some("[2@b]  10%"));
        assert_eq!(after(b""), None);
        assert_eq!(after(b"\r 20%\r 30%\r").as_deref(), Some("[2@b]  30%"));
        assert_eq!(after(b"\r100%\nplain\r\nnext"), None);
        assert_eq!(out, b"[2@b] 100%\n[2@b] plain\n");
        lines.finish(&mut out);
        assert!(out.ends_with(b"[2@b] next\n"));
        // Without tags all bytes are as they were written.
        assert_eq!(feed(&mut Lines::new(0, 2, false, false), &[b"\ra\rb\n"]), b"\ra\rb\n");
        assert_eq!(feed(&mut Lines::tagged(1, "", true), &[b"x\n"]), b"\x1b[33m[1]\x1b[0m x\n");
    }

    #[test]
    fn a_long_line_is_cut_between_characters_and_marked() {
        let mut text = String::from("a");
        while text.len() < 3 * LONGEST {
            text.push('€');
        }
        write!(text, "\nshort\n").unwrap();
        for step in [1000, 4096, LONGEST + 7, text.len()] {
            let mut lines = Lines::new(7, 8, true, false);
            let chunks: Vec<&[u8]> = text.as_bytes().chunks(step).collect();
            let out = String::from_utf8(feed(&mut lines, &chunks)).unwrap();
            let parts: Vec<&str> = out.lines().collect();
            assert!(parts[0].starts_with("[7] a€"));
            assert!(parts[1..parts.len() - 1].iter().all(|p| p.starts_with("[7+] €")), "{step}");
            assert_eq!(parts.last(), Some(&"[7] short"));
            let joined: String =
                parts[..parts.len() - 1].iter().map(|p| p.split_once(' ').unwrap().1).collect();
            assert_eq!(joined, text.lines().next().unwrap());
            assert!(parts.iter().all(|p| p.len() <= LONGEST + 5), "{step}");
        }
    }
}
