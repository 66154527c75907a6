//! Cuts one stream of a rank into pieces that can be written between those of other ranks.
/// A line longer than this is written in parts, so that a rank that never ends its line needs no more memory.
pub(super) const LONGEST: usize = 64 << 10;

/// One output stream of one rank.
#[derive(Debug)]
pub(super) enum Lines {
    /// The only rank, untagged: its bytes pass at once, also a prompt that waits for an answer.
    Straight,
    Whole {
        tag: String,
        /// The tag of a further part of a line that was too long.
        more: String,
        part: Vec<u8>,
        /// The line has begun in an earlier part.
        begun: bool,
    },
}

impl Lines {
    pub(super) fn new(rank: usize, size: usize, tag: bool) -> Self {
        if size == 1 && !tag {
            return Self::Straight;
        }
        if tag {
            return Self::tagged(&rank.to_string(), "");
        }
        Self::Whole { tag: String::new(), more: String::new(), part: Vec::new(), begun: false }
    }

    /// Each line begins with "[3@host] ", or "[3] " where there is no `place`.
    pub(super) fn tagged(rank: &str, place: &str) -> Self {
        let (tag, more) = (format!("[{rank}{place}] "), format!("[{rank}+{place}] "));
        Self::Whole { tag, more, part: Vec::new(), begun: false }
    }

    /// Takes what was read and appends to `out` what can be written now: whole lines, or parts that end as one.
    pub(super) fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        let Self::Whole { tag, more, part, begun } = self else {
            out.extend_from_slice(bytes);
            return;
        };
        while let Some(end) = bytes.iter().position(|&b| b == b'\n') {
            part.extend_from_slice(&bytes[..end]);
            cut_long(part, begun, tag, more, out);
            out.extend_from_slice(if *begun { more.as_bytes() } else { tag.as_bytes() });
            out.append(part);
            out.push(b'\n');
            *begun = false;
            bytes = &bytes[end + 1..];
        }
        part.extend_from_slice(bytes);
        cut_long(part, begun, tag, more, out);
    }

    /// The stream has ended: appends what is left of its last line.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if let Self::Whole { tag, more, part, begun } = self
            && !part.is_empty()
        {
            out.extend_from_slice(if *begun { more.as_bytes() } else { tag.as_bytes() });
            out.append(part);
            out.push(b'\n');
            *begun = false;
        }
    }
}

/// Moves the front of a line that is too long to `out`, never splitting a character.
fn cut_long(part: &mut Vec<u8>, begun: &mut bool, tag: &str, more: &str, out: &mut Vec<u8>) {
    while part.len() > LONGEST {
        let at = boundary(part, LONGEST);
        out.extend_from_slice(if *begun { more.as_bytes() } else { tag.as_bytes() });
        out.extend(part.drain(..at));
        out.push(b'\n');
        *begun = true;
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
        let mut lines = Lines::new(3, 4, true);
        assert_eq!(feed(&mut lines, &[b"a", b"b\nc\n\nd", b"", b"e"]), b"[3] ab\n[3] c\n[3] \n[3] de\n");
        assert_eq!(feed(&mut Lines::new(3, 4, false), &[b"a", b"b\nc"]), b"ab\nc\n");
        assert_eq!(feed(&mut Lines::new(0, 1, false), &[b"a", b"b\nc"]), b"ab\nc");
        assert_eq!(feed(&mut Lines::new(0, 1, true), &[b"x\n"]), b"[0] x\n");
    }

    #[test]
    fn bytes_that_are_no_text_pass() {
        let all: Vec<u8> = (0..=255).filter(|&b| b != b'\n').collect();
        assert_eq!(feed(&mut Lines::new(0, 2, false), &[&all, b"\n"]), [&all[..], b"\n"].concat());
    }

    #[test]
    fn a_long_line_is_cut_between_characters_and_marked() {
        let mut text = String::from("a");
        while text.len() < 3 * LONGEST {
            text.push('€');
        }
        write!(text, "\nshort\n").unwrap();
        for step in [1000, 4096, LONGEST + 7, text.len()] {
            let mut lines = Lines::new(7, 8, true);
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
